"""SL: sequential split learning. Clients take turns; the client-side model goes from one to the next.

Gupta, Raskar, "Distributed learning of deep neural network over multiple agents", JNCA 2018,
https://arxiv.org/abs/1810.06060; Vepakomma, Gupta, Swedish, Raskar 2018, https://arxiv.org/abs/1812.00564.

    client --- activations, labels --> main     every batch
    client <-- gradient at the cut --- main     every batch
    client <-- w_C --- (main | last client)     once a turn
    client --- w_C --> main                     once a turn (``relay: server`` only)

    no average: the last client's w_C opens the next round

Departs from the authors' code: momentum and moments start anew with each turn (client) and round (server);
``reset_optimizer: keep`` hands the client's on with the weights, which makes a round equal to central
training on the concatenated batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rayfl import roles
from rayfl.algorithms.splitfed_v1 import SplitConfig, SplitFedV1
from rayfl.algorithms.splitfed_v2 import SplitFedV2
from rayfl.fleet import Parcel
from rayfl.host import Host, Kept
from rayfl.messages import Relay, Weights
from rayfl.seeding import numpy_generator


class SL(SplitFedV1):
    """One server-side model, one client-side model on its way from client to client."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SL's knobs."""

        name: str = "sl"
        turns: Literal["fixed", "shuffled"] = "fixed"
        """Whether clients come in the order of their ids or in a new random order each round."""
        relay: Literal["server", "peer"] = "server"
        """Whether the client-side model goes through the main server or straight to the next client."""

    class Client(roles.SplitClient):
        """Trains in its turn and hands its model on."""

        def take_over(self, relay: Relay, t: int) -> None:
            """Go on where the last client stopped."""
            self.kept = Kept(self.kept.buffers, dict(relay.optimizer))
            self.receive(relay.weights, t)

        def hand_on(self) -> Relay:
            """Close the turn."""
            weights = self.update().weights
            optimizer, self.kept.optimizer = self.kept.optimizer, {}
            return Relay(weights, optimizer)

    class MainServer(SplitFedV2.MainServer):
        """Trains with whoever's turn it is; keeps the client-side model between turns or rounds."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.held = Relay(host.initial("client"), {})

        def relay(self) -> Relay:
            """The client-side model for the next turn."""
            return self.held

        def take(self, relays: Mapping[int, Relay]) -> None:
            """Hold the client-side model of the client whose turn is over."""
            for relay in relays.values():
                self.held = Relay({**self.held.weights, **relay.weights}, relay.optimizer)

        def client_weights(self) -> Weights:
            """The client-side model between rounds."""
            return self.held.weights

        def state_dict(self) -> dict[str, Any]:
            held = {"weights": dict(self.held.weights), "optimizer": dict(self.held.optimizer)}
            return {**super().state_dict(), "held": held}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            rest = dict(state)
            self.held = Relay(**rest.pop("held"))
            super().load_state_dict(rest)

    FedServer = None

    def round(self, t: int) -> None:
        clients = list(self.sample(t))
        if self.config.turns == "shuffled":
            order = numpy_generator(self.facts.seed, "turns", t).permutation(len(clients))
            clients = [clients[place] for place in order]
        self.main.start_round(t)
        relay = self.main.relay()
        for turn, client in enumerate(clients):
            client.take_over(relay, t)
            for active in self.lockstep(client):
                smashed = active.forward()
                gradients = self.main.train_step(smashed)
                active.backward(gradients)
            handed = client.hand_on()
            following = clients[turn + 1 : turn + 2]
            if self.config.relay == "server":
                self.main.take(handed)
                relay = self.main.relay()
            elif following:
                relay = handed.passed_on({following[0].ids[0]: client.ids[0]})
            else:
                # What a peer keeps for the next round's first client is also what is scored.
                with self.fleet.phase("evaluation"):
                    self.main.take(handed)
        self.main.finish_round()

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.main.client_weights(), self.main.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        return self.global_model(t)
