"""SplitFed v1: split learning for all clients in parallel, both halves averaged every round.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022,
https://arxiv.org/abs/2004.12088, Algorithms 1 and 2.

    client --- activations, labels --> main     every batch
    client <-- gradient at the cut --- main     every batch, from the client's own replica
    client <-- w_C --- fed                      once a round
    client --- w_C,k, n_k --> fed               once a round; the replicas are averaged on the main server

    w_C <- sum_k n_k w_C,k / n ;  w_S <- sum_k n_k w_S,k / n     so that v1 equals FedAvg at every cut

Departs from the authors' code: shares go by size (``weights: uniform`` is theirs), participants alone are
averaged, the averaged pair is scored, and the server's optimiser lives through the round
(``reset_optimizer: per_batch`` is theirs: under Adam that is sign descent).
"""

from dataclasses import dataclass

from torch import nn

from rayfl import roles
from rayfl.algorithms.base import Algorithm
from rayfl.fleet import Parcel
from rayfl.models import cut, default_cut
from rayfl.training import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class SplitConfig(TrainingConfig):
    """Knobs of methods that cut the model once."""

    cut_layer: str | int | None = None
    """The last block on the client, by name or number; by default an early one."""


class SplitFedV1(Algorithm):
    """A replica of the server-side model per client."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SplitFed v1's knobs."""

        name: str = "splitfed_v1"

    Client: type[roles.SplitClient] = roles.SplitClient
    MainServer: type[roles.MainServer] = roles.ReplicaServer

    @classmethod
    def cut(cls, config: SplitConfig, model: nn.Sequential) -> dict[str, nn.Sequential]:
        client, main = cut(model, default_cut(model) if config.cut_layer is None else config.cut_layer)
        return {"client": client, "main": main}

    def round(self, t: int) -> None:
        clients = self.sample(t)
        clients.receive(self.fed.weights(), t)
        self.main.receive(self.main.root.weights(), t)
        for active in self.lockstep(clients):
            smashed = active.forward()
            gradients = self.main.train_step(smashed)
            active.backward(gradients)
        self.fed.aggregate(clients.pooled.update())
        self.main.root.aggregate(self.main.pooled.updates(clients.present()))

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.fed.weights(), self.main.root.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        everybody = self.scatter(dict.fromkeys(self.clients.ids))
        return self.fed.weights(), self.main.personal_weights(everybody, self.main.root.weights())
