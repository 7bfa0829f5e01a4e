"""MyMethod: say the idea in one sentence.

As it stands, the server goes only part of the way to the mean.

Cite the paper here: authors, "Title", venue and year, link.

    fed --- w --> client             once a round
    fed <-- w_k, n_k --- client      once a round

    w <- damping w + (1 - damping) sum_k n_k w_k / sum_k n_k     over the participants of the round

Departs from the paper: name each departure, and the setting that undoes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from torch import Tensor

from rayfl import roles
from rayfl.algorithms.fedavg import FedAvg
from rayfl.host import Batch
from rayfl.messages import PooledUpdate, Update


class MyMethod(FedAvg):
    """Who takes part, and the round in the paper's order."""

    @dataclass(frozen=True, kw_only=True)
    class Config(FedAvg.Config):
        """The knobs."""

        name: str = "my_method:MyMethod"
        """Where rayfl finds the method."""
        damping: Annotated[float, Ge(0), Lt(1)] = 0.5
        """Share of the old weights that the server keeps; 0 is FedAvg."""

    class Client(roles.Client):
        """Trains on its own data."""

        def loss(self, batch: Batch) -> Tensor:
            """What a local step minimises, with graph: a term of your own goes here."""
            return super().loss(batch)

    class FedServer(roles.FedServer):
        """Averages what clients send."""

        def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
            """Go from the old weights towards the mean; counters of batches are taken as they come."""
            before = self.current
            super().aggregate(updates)
            self.current = {
                name: mean.lerp(before[name], self.config.damping) if mean.is_floating_point() else mean
                for name, mean in self.current.items()
            }

    def round(self, t: int) -> None:
        """Calls on groups give parcels, which are passed on unopened."""
        clients = self.sample(t)
        on_time = clients.only(set(clients.ids) - self.stragglers(clients, t))
        updates = on_time.pooled.train(self.fed.weights(), t)
        self.fed.aggregate(updates)
