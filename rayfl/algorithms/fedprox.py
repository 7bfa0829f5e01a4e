"""FedProx: FedAvg with a pull towards the received weights, and partial work of stragglers kept.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127, Algorithm 2.

    fed --- w --> client             once a round
    fed <-- w_k, n_k --- client      once a round

    client k minimises  F_k(w_k) + mu/2 ||w_k - w||^2   over trainable parameters

Departs from the paper: clients are sampled uniformly and averaged by size, as in the authors' code
(``sampling: by_size`` with ``weights: uniform`` is the printed form).
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from rayfl import roles, tree
from rayfl.algorithms.fedavg import FedAvg
from rayfl.fleet import Group
from rayfl.host import Batch
from rayfl.seeding import numpy_generator


class FedProx(FedAvg):
    """FedAvg plus the proximal term."""

    @dataclass(frozen=True, kw_only=True)
    class Config(FedAvg.Config):
        """FedProx's knobs."""

        name: str = "fedprox"
        mu: Annotated[float, Ge(0)] = 0.01
        """Strength mu of the pull."""

    class Client(roles.Client):
        """Minimises the local loss plus the proximal term."""

        def loss(self, batch: Batch) -> Tensor:
            pull = tree.squared_distance(self.model.named_parameters(), self.received)
            loss: Tensor = super().loss(batch) + self.config.mu / 2 * pull
            return loss

    def round(self, t: int) -> None:
        clients = self.sample(t)
        work = self.scatter(self.steps(clients, t))
        self.fed.aggregate(clients.pooled.train(self.fed.weights(), t, work))

    def steps(self, clients: Group, t: int) -> dict[int, int]:
        """A straggler makes U{1..E-1} of its E epochs."""
        steps, epochs = super().steps(clients, t), self.config.local_epochs
        if epochs > 1:
            for client in self.stragglers(clients, t):
                done = int(numpy_generator(self.facts.seed, "partial work", t, client).integers(1, epochs))
                steps[client] = steps[client] * done // epochs
        return steps
