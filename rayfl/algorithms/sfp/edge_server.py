"""H-SFP's edge server: trains its part on features that nobody had."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rayfl import roles, tree
from rayfl.algorithms.sfp.messages import Features, Message
from rayfl.algorithms.sfp.prototypes import prototypes
from rayfl.algorithms.sfp.spatial import view
from rayfl.algorithms.sfp.synthesis import shuffled
from rayfl.evaluation import batch_size
from rayfl.host import Host, Kept, Learner
from rayfl.messages import PooledUpdate, Update, Weights
from rayfl.roles import per_client
from rayfl.seeding import generator


class MomentEdge(roles.EdgeServer):
    """Keeps the edge part, and the average of its clients' parts."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.own: Weights = host.initial("edge")
        self.kept = Kept()
        self.mass = 0.0
        self.below: Weights = host.initial("client")
        self.mass_below = 0.0
        self.prototypes = prototypes(host, "edge")
        self.drawn: tuple[Tensor, Tensor, Any] | None = None

    def train_round(self, moments: Mapping[int, Message | None], t: int) -> None:
        """Draw from what the round's clients sent, and train the edge part by contrast."""
        config = self.config
        self.mass += sum(config.mass(self.facts.num_samples[client]) for client in moments)
        found = self.prototypes.sources(moments)
        if not found:
            self.drawn = None
            return
        draws = generator(self.facts.seed, "edge synthesis", t, self.id)
        views = 2 if config.edge_views == "draws" else 1
        features, labels = self.prototypes.draw(found, views, draws)
        learner = Learner(self.host, "edge", self.own, t, self.kept)
        objective = self.prototypes.objective(learner.lr, t, self.facts.num_clients + self.id)
        for rows in shuffled(len(labels) // views, config.batch_size, config.edge_epochs, draws):
            pair = self._pair(features, rows, draws)
            loss = objective.loss(learner.forward(pair), labels[rows.repeat(2)].to(pair.device))
            if loss.requires_grad:
                loss.backward()
                learner.step()
                objective.step()
        self.own = {**self.own, **learner.weights()}
        self.kept = learner.close()
        self.own = {**self.own, **self.kept.buffers}
        self.drawn = features, labels, found

    def _pair(self, features: Tensor, rows: Tensor, draws: torch.Generator) -> Tensor:
        """Two views of some of what was drawn, first ones before second ones."""
        if self.config.edge_views == "draws":
            return features[torch.cat([rows, rows + len(features) // 2])]
        some = features[rows]
        return torch.cat([view(some, draws, self.flips), view(some, draws, self.flips)])

    @property
    def flips(self) -> bool:
        """Whether mirrored images are images of the same kind."""
        return self.host.blueprint.augment not in ("none", "shift")

    def moments(self) -> Message | None:
        """Of the edge part's outputs for what was drawn, with the counts of the real samples behind it."""
        if self.drawn is None:
            return None
        (features, labels, found), self.drawn = self.drawn, None
        size = batch_size(features[0].numel())
        with self.host.frozen("edge", self.own) as model:
            outputs = (
                (model(some), those)
                for some, those in zip(features.split(size), labels.split(size), strict=True)
            )
            return self.prototypes.pass_on(outputs, found)

    @per_client
    def features(self, sent: Mapping[int, Features | None]) -> dict[int, Features | None]:
        """Each client's features through the edge part, in evaluation mode; masks tag along."""
        self.drawn = None
        with self.host.frozen("edge", self.own) as model:
            return {client: some and _through(model, some) for client, some in sent.items()}

    def send(self) -> Update:
        """The edge part, with the mass of those that took part since the last average."""
        return Update(self.host.travels(self.own), self.mass)

    def replace(self, weights: Weights) -> None:
        """Go on from the average of the edges."""
        self.own, self.mass = {**self.own, **weights}, 0.0

    def weights(self) -> Weights:
        """The edge part."""
        return self.own

    def average_clients(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
        """Average those clients that took part since the last time."""
        mean = tree.weighted_mean(updates, self.facts.num_clients)
        if mean is not None:
            self.below, self.mass_below = {**self.below, **mean.weights}, mean.mass

    def send_clients(self) -> Update:
        """That average."""
        return Update(self.host.travels(self.below), self.mass_below)

    def replace_clients(self, weights: Weights) -> None:
        """Take up the average over edges."""
        self.below, self.mass_below = {**self.below, **weights}, 0.0

    def client_weights(self) -> Weights:
        """What clients go on from."""
        return self.host.travels(self.below)

    def state_dict(self) -> dict[str, Any]:
        kept = {"own": dict(self.own), "mass": self.mass, "kept": self.kept.state_dict()}
        return {**kept, "below": dict(self.below), "mass_below": self.mass_below}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.own, self.mass, self.kept = state["own"], state["mass"], Kept(**state["kept"])
        self.below, self.mass_below = state["below"], state["mass_below"]


def _through(model: nn.Module, features: Features) -> Features:
    some = features.maps.split(batch_size(features.maps[0].numel()))
    return Features(torch.cat([model(maps) for maps in some]), features.masks)
