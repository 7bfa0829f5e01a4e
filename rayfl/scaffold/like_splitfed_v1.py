"""MyMethod: say the idea in one sentence.

As it stands, both servers go only part of the way to the mean.

Cite the paper here: authors, "Title", venue and year, link.

    client --- activations, labels --> main     every batch
    client <-- gradient at the cut --- main     every batch, from the client's own replica
    client <-- w_C --- fed                      once a round
    client --- w_C,k, n_k --> fed               once a round; the replicas are averaged on the main server

    w <- damping w + (1 - damping) sum_k n_k w_k / sum_k n_k     for w_C on the fed, w_S on the main server

Departs from the paper: name each departure, and the setting that undoes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from rayfl import roles
from rayfl.algorithms.splitfed_v1 import SplitFedV1
from rayfl.messages import PooledUpdate, Update, Weights


def damped(mean: Weights, before: Weights, damping: float) -> Weights:
    """Weights between the mean and the old ones; counters of batches are taken as they come."""
    return {
        name: value.lerp(before[name], damping) if value.is_floating_point() else value
        for name, value in mean.items()
    }


class MyMethod(SplitFedV1):
    """Who takes part, and the round in the paper's order."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitFedV1.Config):
        """The knobs."""

        name: str = "my_method:MyMethod"
        """Where rayfl finds the method."""
        damping: Annotated[float, Ge(0), Lt(1)] = 0.5
        """Share of the old weights that the servers keep; 0 is SplitFed v1."""

    class Client(roles.SplitClient):
        """Holds the blocks up to the cut: ``forward`` sends smashed data, ``backward`` takes the answer."""

    class FedServer(roles.FedServer):
        """Averages the client-side models."""

        def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
            """Go from the old weights towards the mean."""
            before = self.current
            super().aggregate(updates)
            self.current = damped(self.current, before, self.config.damping)

    class MainServer(roles.ReplicaServer):
        """A replica of the server-side model per client. ``learn`` is its step: change it here."""

        def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
            """Go from the old weights towards the mean of the replicas."""
            before = self.current
            super().aggregate(updates)
            self.current = damped(self.current, before, self.config.damping)

    def round(self, t: int) -> None:
        """Calls on groups give parcels, which are passed on unopened."""
        clients = self.sample(t)
        clients.receive(self.fed.weights(), t)
        self.main.receive(self.main.root.weights(), t)
        for active in self.lockstep(clients):
            smashed = active.forward()
            gradients = self.main.train_step(smashed)
            active.backward(gradients)
        self.fed.aggregate(clients.pooled.update())
        self.main.root.aggregate(self.main.pooled.updates(clients.present()))
