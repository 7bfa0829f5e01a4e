"""SplitFed v3: personal client-side models, averaged server-side models.

Gawali, Arvind, Suryavanshi, Madaan, Gaikwad, Bhanu Prakash, Kulkarni, Pant, "Comparison of Privacy-Preserving
Distributed Deep Learning Methods in Healthcare", MIUA 2021, https://arxiv.org/abs/2012.12591.

    client --- activations, labels --> main     every batch
    client <-- gradient at the cut --- main     every batch, from the client's own replica

    w_S <- sum_k n_k w_S,k / n ;  w_C,k stays with client k

Departs from the paper: a client that has never taken part is scored with the initial client-side model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayfl import roles
from rayfl.algorithms.splitfed_v1 import SplitConfig, SplitFedV1
from rayfl.fleet import Parcel
from rayfl.host import Host, Kept
from rayfl.messages import Weights
from rayfl.tasks import Score


class SplitFedV3(SplitFedV1):
    """v1 without a fed server: client-side models are never averaged."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SplitFed v3's knobs."""

        name: str = "splitfed_v3"

    class Client(roles.SplitClient):
        """Keeps its own client-side model from round to round."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.own: Weights = host.initial("client")

        def start_round(self, t: int) -> None:
            """Go on from the client's own weights."""
            self.receive(self.own, t)

        def own_weights(self) -> Weights:
            """The client's own part between rounds."""
            return self.own

        def finish_round(self) -> None:
            """Keep the trained weights."""
            self.own = {**self.own, **self.update().weights, **self.kept.buffers}

        def score(self, *parts: Weights) -> tuple[Score, Score]:
            return super().score(self.own, *parts)

        def state_dict(self) -> dict[str, Any]:
            return {"own": dict(self.own), **super().state_dict()}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.own = state["own"]
            self.kept = Kept(**{key: value for key, value in state.items() if key != "own"})

    FedServer = None
    personal = True

    def round(self, t: int) -> None:
        clients = self.sample(t)
        clients.start_round(t)
        self.main.receive(self.main.root.weights(), t)
        for active in self.lockstep(clients):
            smashed = active.forward()
            gradients = self.main.train_step(smashed)
            active.backward(gradients)
        clients.finish_round()
        self.main.root.aggregate(self.main.pooled.updates(clients.present()))

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.clients.own_weights(), self.main.root.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        everybody = self.scatter(dict.fromkeys(self.clients.ids))
        return (self.main.personal_weights(everybody, self.main.root.weights()),)
