"""FedAvg: average locally trained models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    fed --- w --> client             once a round
    fed <-- w_k, n_k --- client      once a round

    w <- sum_k n_k w_k / sum_k n_k   over the participants of the round

Departs from the paper: shares are normalised over participants (the first printed form divided by all
clients, which shrinks the model); ``weights: uniform`` gives every participant an equal share. Stragglers
(``stragglers``) are left out of the round, as in the baseline of the FedProx paper.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from rayfl.algorithms.base import Algorithm
from rayfl.fleet import Group
from rayfl.seeding import numpy_generator
from rayfl.training import TrainingConfig


class FedAvg(Algorithm):
    """Local SGD, then the weighted mean."""

    @dataclass(frozen=True, kw_only=True)
    class Config(TrainingConfig):
        """FedAvg's knobs."""

        name: str = "fedavg"
        stragglers: Annotated[float, Ge(0), Lt(1)] = 0.0
        """Fraction of participants that can't finish their local epochs in time."""

    def round(self, t: int) -> None:
        clients = self.sample(t)
        on_time = clients.only(set(clients.ids) - self.stragglers(clients, t))
        self.fed.aggregate(on_time.pooled.train(self.fed.weights(), t))

    def stragglers(self, clients: Group, t: int) -> set[int]:
        """The participants that are late in round ``t``, the same for every method."""
        rng = numpy_generator(self.facts.seed, "stragglers", t)
        count = len(clients) - round((1 - self.config.stragglers) * len(clients))
        return {int(i) for i in rng.permutation(clients.ids)[:count]}
