"""MyMethod: say the idea in one sentence.

As it stands, both tiers go only part of the way to their averages.

Cite the paper here: authors, "Title", venue and year, link.

    client --- z1, labels --> edge --- z2, labels --> main     every step
    client <-- gradient at cut 1 --- edge <-- gradient at cut 2 --- main     every step
    client --- part 1 --> fed --- average --> client           every I_1 steps
    edge   --- part 2 --> fed --- average --> edge             every I_2 steps

    w <- damping w + (1 - damping) mean_k w_k     for part 1 over clients and part 2 over edges

Departs from the paper: name each departure, and the setting that undoes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from rayfl.algorithms.hsfl import HSFL
from rayfl.messages import PooledUpdate, Update, Weights


def damped(mean: Weights, before: Weights, damping: float) -> Weights:
    """Weights between the mean and the old ones; counters of batches are taken as they come."""
    return {
        name: value.lerp(before[name], damping) if value.is_floating_point() else value
        for name, value in mean.items()
    }


class MyMethod(HSFL):
    """Who takes part, and the round in the paper's order."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HSFL.Config):
        """The knobs."""

        name: str = "my_method:MyMethod"
        """Where rayfl finds the method."""
        damping: Annotated[float, Ge(0), Lt(1)] = 0.5
        """Share of the last average that the next one keeps; 0 is HSFL."""

    class Client(HSFL.Client):
        """Keeps part 1: ``forward`` sends smashed data, ``backward`` takes the answer."""

    class EdgeServer(HSFL.EdgeServer):
        """Keeps part 2 for its own clients: ``forward`` and ``backward`` pass through it."""

    class FedServer(HSFL.FedServer):
        """Averages the copies of each tier, now and then."""

        def average_clients(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """Go from the last average of part 1 towards the next."""
            before = self.current
            self.current = damped(super().average_clients(updates), before, self.config.damping)
            return self.current

        def average_edges(self, updates: Mapping[int, Update | PooledUpdate]) -> Weights:
            """Go from the last average of part 2 towards the next."""
            before = self.edge_current
            self.edge_current = damped(super().average_edges(updates), before, self.config.damping)
            return self.edge_current

    def round(self, t: int) -> None:
        """Calls on groups give parcels, which are passed on unopened."""
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
            self.average(clients, edges)
        clients.finish_round()
        edges.finish_round()
        self.main.finish_round()
