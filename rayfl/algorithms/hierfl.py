"""HierFL: FedAvg in two tiers, edges averaging often and the cloud now and then.

Liu, Zhang, Song, Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020,
https://arxiv.org/abs/1905.06641, Algorithm 1 (HierFAVG).

    edge --- w_e --> client,  edge <-- w_k, n_k --- client     every round (kappa_1 local steps)
    fed <-- w_e, n_e --- edge,  fed --- w --> edge             every kappa_2 rounds

    w_e <- sum_{k in e} n_k w_k / n_e ;   every kappa_2 rounds  w <- sum_e n_e w_e / n

Departs from the paper: a round is one edge round, so that it means the same local work as in other methods.
Between cloud rounds the average that the cloud would make is scored, without traffic. An edge without
participants keeps its weights and carries no mass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from rayfl import roles, tree
from rayfl.algorithms.base import Algorithm
from rayfl.fleet import Parcel
from rayfl.host import Host
from rayfl.messages import PooledUpdate, Update, Weights
from rayfl.training import TrainingConfig


class HierFL(Algorithm):
    """Edge rounds, and a cloud average every ``cloud_interval`` of them."""

    @dataclass(frozen=True, kw_only=True)
    class Config(TrainingConfig):
        """HierFL's knobs."""

        name: str = "hierfl"
        cloud_interval: Annotated[int, Ge(1)] = 2
        """Edge rounds per cloud average, kappa_2."""

    class EdgeServer(roles.EdgeServer):
        """Averages its own clients."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.current: Weights = host.initial("client")
            self.mass = 0.0

        def weights(self) -> Weights:
            """The edge's present model."""
            return self.current

        def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
            """Average the edge's participants."""
            mean = tree.weighted_mean(updates, self.facts.num_clients)
            if mean is not None:
                self.current, self.mass = {**self.current, **mean.weights}, mean.mass

        def update(self) -> Update:
            """The edge's model, with the mass of the clients behind it since the last cloud average."""
            return Update(self.host.travels(self.current), self.mass)

        def receive(self, weights: Weights) -> None:
            """Take up the cloud's average."""
            self.current, self.mass = weights, 0.0

        def state_dict(self) -> dict[str, Any]:
            return {"current": dict(self.current), "mass": self.mass}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.current, self.mass = state["current"], state["mass"]

    class FedServer(roles.FedServer):
        """Averages the edges."""

        def preview(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """The average that a cloud round would give now."""
            mean = tree.weighted_mean(updates, self.facts.num_edges)
            return self.current if mean is None else {**self.current, **mean.weights}

        def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
            self.current = self.preview(updates)

    def round(self, t: int) -> None:
        clients = self.sample(t)
        self.edges.aggregate(clients.train(self.edges.weights(), t))
        if t % self.config.cloud_interval == 0:
            self.fed.aggregate(self.edges.update())
            self.edges.receive(self.fed.weights())

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        if t % self.config.cloud_interval == 0:
            return (self.fed.weights(),)
        return (self.fed.preview(self.edges.update()),)
