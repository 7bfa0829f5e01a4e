"""HSFL: the model cut over three tiers, each averaging its copies at its own interval.

Lin, Wei, Chen, Lam, Chen, Gao, Luo, "Hierarchical Split Federated Learning: Convergence Analysis and System
Optimization", IEEE TMC 2025, https://arxiv.org/abs/2412.07197.

    client --- z1, labels --> edge --- z2, labels --> main     every step
    client <-- gradient at cut 1 --- edge <-- gradient at cut 2 --- main     every step
    client --- part 1 --> fed --- average --> client           every I_1 steps
    edge   --- part 2 --> fed --- average --> edge             every I_2 steps

    an entity's copy steps with the mean over its own clients of their gradients:
    w_j <- w_j - eta (1/|clients under j|) sum_k grad l_k ;    the client with its own, the cloud with all

Departs from the paper: its text was not at hand, the update rules are reconstructed from its abstract.
Intervals count local steps, the paper's rounds, or ours (``interval_unit``). Cuts and intervals are given,
not optimised. Between averages the average of the copies is scored, without traffic. A client (or edge) that
missed the last round takes up the last average first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge
from torch import nn

from rayfl import cutting, roles, tree
from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.splitfed_joint import SplitFedJoint
from rayfl.algorithms.splitfed_v3 import SplitFedV3
from rayfl.cutting import Values
from rayfl.fleet import Fleet, Group, Parcel
from rayfl.host import Host, Kept, Learner
from rayfl.messages import Gradient, PooledUpdate, SmashedBatch, Update, Weights
from rayfl.models import cut, default_cuts
from rayfl.roles import per_client
from rayfl.training import TrainingConfig


class HSFL(Algorithm):
    """Client, edge and cloud parts trained together, hop by hop."""

    @dataclass(frozen=True, kw_only=True)
    class Config(TrainingConfig):
        """HSFL's knobs."""

        name: str = "hsfl"
        cut_layers: tuple[str | int, str | int] | None = None
        """The last block on the client and the last block on the edge; by default early ones."""
        intervals: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (10, 5)
        """What lies between averages of the client parts, I_1, and of the edge parts, I_2."""
        interval_unit: Literal["steps", "rounds"] = "steps"
        """Whether that is local steps or whole rounds."""
        loss_norm: Literal["per_client_mean", "merged_mean", "sum"] = "per_client_mean"
        """A client's share of the cloud's gradient: equal, by batch size, or 1."""
        weights: Literal["size", "batch", "uniform"] = "uniform"

    class Client(SplitFedV3.Client):
        """Keeps its own copy of part 1, averaged now and then."""

        def send(self) -> Update:
            """The copy as it is."""
            weights = self.host.travels(self.own) if self.learner is None else self.learner.weights()
            return Update(weights, self.config.mass(len(self.rows)))

        def replace(self, weights: Weights) -> None:
            """Go on from an average."""
            self.own = {**self.own, **weights}
            if self.learner is not None:
                self.learner.replace(weights)

    class EdgeServer(roles.EdgeServer):
        """Keeps the edge's own copy of part 2 and passes activations up and gradients down."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.own: Weights = host.initial("edge")
            self.kept = Kept()
            self.learner: Learner | None = None
            self.mass = 0.0
            self.passing: dict[int, tuple[Values, Values]] = {}

        def start_round(self, t: int, participants: tuple[int, ...]) -> None:
            """Open round ``t`` for those participants that are this edge's."""
            mine = [i for i in participants if self.facts.client_edges[i] == self.id]
            self.mass = sum(self.config.mass(self.facts.num_samples[i]) for i in mine)
            self.learner = Learner(self.host, "edge", self.own, t, self.kept)

        @per_client
        def forward(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, SmashedBatch]:
            """Carry each client's batch through part 2; labels tag along."""
            assert self.learner is not None
            for client, batch in smashed.items():
                inputs = cutting.entering(batch.activations)
                self.passing[client] = inputs, self.learner.forward(inputs)
            return {
                i: SmashedBatch(cutting.detached(self.passing[i][1]), batch.labels)
                for i, batch in smashed.items()
            }

        @per_client
        def backward(self, gradients: Mapping[int, Gradient]) -> dict[int, Gradient]:
            """Carry each client's gradient back; step with the mean over the clients present."""
            assert self.learner is not None
            result = {}
            for client, gradient in gradients.items():
                inputs, outputs = self.passing.pop(client)
                cutting.backward(outputs, gradient.values)
                result[client] = Gradient(cutting.gradients(inputs))
            for parameter in self.learner.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(len(gradients))
            self.learner.step()
            return result

        def send(self) -> Update:
            """The copy as it is, with the mass of the round's clients under this edge."""
            weights = self.host.travels(self.own) if self.learner is None else self.learner.weights()
            return Update(weights, self.mass)

        def replace(self, weights: Weights) -> None:
            """Go on from an average."""
            self.own = {**self.own, **weights}
            if self.learner is not None:
                self.learner.replace(weights)

        def finish_round(self) -> None:
            """Keep the trained copy."""
            assert self.learner is not None
            self.own = {**self.own, **self.learner.weights()}
            self.kept = self.learner.close()
            self.own, self.learner = {**self.own, **self.kept.buffers}, None

        def weights(self) -> Weights:
            """The copy between rounds."""
            return self.own

        def state_dict(self) -> dict[str, Any]:
            return {"own": dict(self.own), "mass": self.mass, "kept": self.kept.state_dict()}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.own, self.mass, self.kept = state["own"], state["mass"], Kept(**state["kept"])

    class FedServer(roles.FedServer):
        """Averages the copies of each tier."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.edge_current: Weights = host.initial("edge")

        def average_edges(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """Average the edges' copies."""
            self.edge_current = self.preview_edges(updates)
            return self.edge_current

        def average_clients(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """Average the clients' copies."""
            self.aggregate(updates)
            return self.current

        def preview_edges(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """The edges' average as it would be now."""
            mean = tree.weighted_mean(updates, self.facts.num_edges)
            return self.edge_current if mean is None else {**self.edge_current, **mean.weights}

        def preview_clients(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """The clients' average as it would be now."""
            mean = tree.weighted_mean(updates, self.facts.num_clients)
            return self.current if mean is None else {**self.current, **mean.weights}

        def edge_weights(self) -> Weights:
            """The last average of the edges."""
            return self.edge_current

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "edge_current": dict(self.edge_current)}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            super().load_state_dict(state)
            self.edge_current = state["edge_current"]

    MainServer: type[roles.MainServer] = SplitFedJoint.MainServer

    def __init__(self, config: Any, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self.state = {"passed": 0}

    @classmethod
    def cut(cls, config: Config, model: nn.Sequential) -> dict[str, nn.Sequential]:
        client, edge, main = cut(model, *(config.cut_layers or default_cuts(model, 2)))
        return {"client": client, "edge": edge, "main": main}

    def round(self, t: int) -> None:
        clients, edges = self.participants(t)
        if t > 1:
            before, edges_before = self.participants(t - 1)
            clients.only(set(clients.ids) - set(before.ids)).replace(self.fed.weights())
            edges.only(set(edges.ids) - set(edges_before.ids)).replace(self.fed.edge_weights())
        clients.start_round(t)
        edges.start_round(t, clients.ids)
        self.main.start_round(t)
        for active in self.lockstep(clients):
            smashed = active.forward()
            deeper = edges.forward(smashed)
            gradients = self.main.train_step(deeper)
            back = edges.backward(gradients)
            active.backward(back)
            if self.config.interval_unit == "steps":
                self.average(clients, edges)
        if self.config.interval_unit == "rounds":
            self.average(clients, edges)
        clients.finish_round()
        edges.finish_round()
        self.main.finish_round()

    def average(self, clients: Group, edges: Group) -> None:
        """After a step or round: average the tiers whose interval is over."""
        self.state["passed"] += 1
        every_client, every_edge = self.config.intervals
        if self.state["passed"] % every_client == 0:
            clients.replace(self.fed.average_clients(clients.pooled.send()))
        if self.state["passed"] % every_edge == 0:
            edges.replace(self.fed.average_edges(edges.send()))

    def participants(self, t: int) -> tuple[Group, Group]:
        """The clients of round ``t`` and the edges above them."""
        clients = self.sample(t)
        return clients, self.edges.only(self.facts.client_edges[i] for i in clients.ids)

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        if t == 0:
            return self.fed.weights(), self.fed.edge_weights(), self.main.weights()
        clients, edges = self.participants(t)
        client_part = self.fed.preview_clients(clients.pooled.send())
        return client_part, self.fed.preview_edges(edges.send()), self.main.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        return self.edges.weights(), self.main.weights()
