"""H-SFP's edge server: trains its part on features that nobody had."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rayfl import roles, tree
from rayfl.algorithms.sfp.gaussians import fit
from rayfl.algorithms.sfp.messages import ClassMoments, packed
from rayfl.algorithms.sfp.objective import Objective
from rayfl.algorithms.sfp.spatial import view
from rayfl.algorithms.sfp.synthesis import counts, shuffled, sources, synthesise
from rayfl.evaluation import MOST_ROWS
from rayfl.host import Host, Kept, Learner
from rayfl.messages import PooledUpdate, Update, Weights
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
        self.drawn: tuple[Tensor, Tensor, dict[int, int]] | None = None

    def learn(self, moments: Mapping[int, ClassMoments | None], t: int) -> None:
        """Draw from what the round's clients sent, and train the edge part by contrast."""
        config = self.config
        self.mass += sum(config.mass(self.facts.num_samples[client]) for client in moments)
        found = sources(moments, config)
        if not found:
            self.drawn = None
            return
        draws = generator(self.facts.seed, "edge synthesis", t, self.id)
        features, labels = synthesise(found, config, draws)
        others = synthesise(found, config, draws)[0] if config.edge_views == "draws" else None
        learner = Learner(self.host, "edge", self.own, t, self.kept)
        objective = Objective(self.host, learner.lr, "gap", t, self.facts.num_clients + self.id)
        for rows in shuffled(len(labels), config.batch_size, config.edge_epochs, draws):
            some = features[rows]
            pair = (
                (some, others[rows])
                if others is not None
                else (view(some, draws, self.flips), view(some, draws, self.flips))
            )
            loss = objective.loss(learner.forward(torch.cat(pair)), labels[rows].repeat(2))
            if loss is not None:
                loss.backward()
                learner.step()
                objective.step()
        self.own = {**self.own, **learner.weights()}
        self.kept = learner.close()
        self.own = {**self.own, **self.kept.buffers}
        if others is not None:
            features, labels = torch.cat([features, others]), labels.repeat(2)
        self.drawn = features, labels, counts(found)

    @property
    def flips(self) -> bool:
        """Whether mirrored images are images of the same kind."""
        return self.host.blueprint.augment not in ("none", "shift")

    def moments(self) -> ClassMoments | None:
        """Of the edge part's outputs for what was drawn, with the counts of the real samples behind it."""
        if self.drawn is None:
            return None
        (features, labels, real), self.drawn = self.drawn, None
        with self.host.frozen("edge", self.own) as model:
            outputs = (
                (model(some), those)
                for some, those in zip(features.split(MOST_ROWS), labels.split(MOST_ROWS), strict=True)
            )
            found = fit(outputs, self.config.covariance, self.config.rank)
        return packed({label: replace(one, count=real[label]) for label, one in found.items()})

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
