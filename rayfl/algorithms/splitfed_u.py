"""SplitFed U: SplitFed v1 whose labels stay at home; the client keeps the first and the last blocks.

The U-shaped configuration of Vepakomma, Gupta, Swedish, Raskar, "Split learning for health: Distributed deep
learning without sharing raw patient data", 2018, https://arxiv.org/abs/1812.00564, in SplitFed's round.

    client --- activations at cut 1 --> main     every batch
    client <-- activations at cut 2 --- main     every batch
    client --- gradient at cut 2 --> main        every batch; the loss is the client's
    client <-- gradient at cut 1 --- main        every batch
    client <-- w_C --- fed                       once a round; both ends of the model
    client --- w_C,k, n_k --> fed                once a round; the replicas are averaged on the main server

    w_C <- sum_k n_k w_C,k / n ;  w_S <- sum_k n_k w_S,k / n     which is FedAvg at every pair of cuts

Departs from the paper: it trains clients in turns; here they train in parallel and both parts are averaged,
as in SplitFed v1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from rayfl import cutting, roles
from rayfl.algorithms.splitfed_v1 import SplitConfig, SplitFedV1
from rayfl.cutting import Values
from rayfl.host import Host
from rayfl.messages import Activations, Gradient, Weights
from rayfl.models import block_names, cut, default_cut, join
from rayfl.roles import per_client


class SplitFedU(SplitFedV1):
    """Ends at the client, middle at the main server."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SplitFed U's knobs."""

        name: str = "splitfed_u"
        tail_layer: str | int | None = None
        """The last block on the main server, by name or number; by default all but the head."""

    class Client(roles.SplitClient):
        """Runs both ends and the loss."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.head = num_head_blocks(self.config, host.blueprint.model())

        def send(self) -> Activations:
            """The activations of the next batch at the first cut; its labels stay."""
            assert self.learner is not None
            inputs, self.labels = next(self.batches)
            self.output = self.learner.forward(inputs, slice(self.head))
            return Activations(cutting.detached(self.output))

        def lose(self, deeper: Activations) -> Gradient:
            """Loss and gradient of the last blocks, from the activations at the second cut."""
            assert self.learner is not None
            inputs = cutting.entering(deeper.values)
            outputs = self.learner.forward(inputs, slice(self.head, None))
            self.host.loss(outputs, self.labels).backward()
            return Gradient(cutting.gradients(inputs))

    class MainServer(roles.ReplicaServer):
        """Passes activations on and gradients back; never sees a label."""

        def receive(self, weights: Weights, t: int) -> None:
            super().receive(weights, t)
            self.passing: dict[int, tuple[Values, Values]] = {}

        @per_client
        def forward(self, smashed: Mapping[int, Activations]) -> dict[int, Activations]:
            """Carry each client's batch through its replica."""
            for client, batch in smashed.items():
                inputs = cutting.entering(batch.values)
                self.passing[client] = inputs, self._replica(client).forward(inputs)
            return {client: Activations(cutting.detached(self.passing[client][1])) for client in smashed}

        @per_client
        def backward(self, gradients: Mapping[int, Gradient]) -> dict[int, Gradient]:
            """Carry each client's gradient back and step its replica."""
            result = {}
            for client, gradient in gradients.items():
                inputs, outputs = self.passing.pop(client)
                replica = self._replica(client)
                if self.config.reset_optimizer == "per_batch":
                    replica.renew_optimizer()
                cutting.backward(outputs, gradient.values)
                replica.step()
                result[client] = Gradient(cutting.gradients(inputs))
            return result

    @classmethod
    def cut(cls, config: Any, model: nn.Sequential) -> dict[str, nn.Sequential]:
        head, main, tail = cut(model, *cut_layers(config, model))
        return {"client": join(head, tail), "main": main}

    def round(self, t: int) -> None:
        clients = self.sample(t)
        clients.receive(self.fed.weights(), t)
        self.main.receive(self.main.root.weights(), t)
        for active in self.lockstep(clients):
            smashed = active.send()
            deeper = self.main.forward(smashed)
            gradients = self.main.backward(active.lose(deeper))
            active.backward(gradients)
        self.fed.aggregate(clients.pooled.update())
        self.main.root.aggregate(self.main.pooled.updates(clients.present()))


def cut_layers(config: SplitFedU.Config, model: nn.Sequential) -> tuple[str | int, str | int]:
    """The two cuts: below the main server's blocks and above them."""
    first = default_cut(model) if config.cut_layer is None else config.cut_layer
    last = block_names(model)[-2] if config.tail_layer is None else config.tail_layer
    return first, last


def num_head_blocks(config: SplitFedU.Config, model: nn.Sequential) -> int:
    """How many blocks lie on the client below the first cut."""
    return len(cut(model, *cut_layers(config, model))[0])
