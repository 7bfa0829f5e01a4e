"""SplitFed v2: one server-side model, updated by one client's batch after another.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022,
https://arxiv.org/abs/2004.12088, section on SFLV2.

    client --- activations, labels --> main     every batch
    client <-- gradient at the cut --- main     every batch, before the server's step on it
    client <-- w_C --- fed                      once a round
    client --- w_C,k, n_k --> fed               once a round

    for each client batch in the visiting order:  w_S <- w_S - eta grad ;   w_C <- sum_k n_k w_C,k / n

Departs from the authors' code: at each step the server visits all present clients in a seeded random order,
as the paper says; ``visits: client_major`` is the code's order, all batches of one client before the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rayfl import roles
from rayfl.algorithms.splitfed_v1 import SplitConfig, SplitFedV1
from rayfl.fleet import Parcel
from rayfl.messages import Gradient, SmashedBatch
from rayfl.roles import per_client
from rayfl.seeding import derive


def visiting_order(seed: int, t: int, step: int, clients: Iterable[int]) -> list[int]:
    """A random order of clients, the same whoever else is present."""
    return sorted(clients, key=lambda client: derive(seed, "visits", t, step, client))


class SplitFedV2(SplitFedV1):
    """One server-side model for all clients, in turns."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SplitFed v2's knobs."""

        name: str = "splitfed_v2"
        visits: Literal["batch_major", "client_major"] = "batch_major"
        """One batch of each client in turn, or all batches of one client before the next."""

    class MainServer(roles.MainServer):
        """Steps once for each client's batch."""

        def start_round(self, t: int) -> None:
            super().start_round(t)
            self.t, self.step = t, 0

        @per_client
        def train_step(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
            """Visit the clients that are present, one server step each."""
            assert self.learner is not None
            order = visiting_order(self.facts.seed, self.t, self.step, smashed)
            self.step += 1
            return {client: self.learn(self.learner, smashed[client]) for client in order}

    def round(self, t: int) -> None:
        clients = self.sample(t)
        clients.receive(self.fed.weights(), t)
        self.main.start_round(t)
        turns = [clients]
        if self.config.visits == "client_major":
            turns = [clients.only([i]) for i in visiting_order(self.facts.seed, t, 0, clients.ids)]
        for turn in turns:
            for active in self.lockstep(turn):
                smashed = active.forward()
                gradients = self.main.train_step(smashed)
                active.backward(gradients)
        self.fed.aggregate(clients.pooled.update())
        self.main.finish_round()

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.fed.weights(), self.main.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        return self.global_model(t)
