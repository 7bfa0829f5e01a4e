"""The evidence teacher: what the global model makes of the features that clients have sent anyway."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from rayfl import cutting
from rayfl.algorithms.bes.config import BESConfig
from rayfl.algorithms.bes.evidence import evidence
from rayfl.cutting import Values
from rayfl.evaluation import batch_size
from rayfl.host import Host, Kept, Lent
from rayfl.messages import SmashedBatch, Weights


class Teacher:
    """The server-side model as it was when the round began, in evaluation mode."""

    def __init__(self, host: Host) -> None:
        assert isinstance(host.config, BESConfig)
        self.host, self.config = host, host.config
        self.weights: Weights = {}

    @cached_property
    def lent(self) -> Lent:
        """The module, which stays in this form: on a CPU it takes half the time so."""
        lent = self.host.borrow("main")
        module = lent.module.eval().to(memory_format=torch.channels_last)
        return replace(lent, state=dict(module.state_dict()), parameters=tuple(module.parameters()))

    @property
    def asked(self) -> bool:
        """Whether anybody learns from it."""
        return self.config.dtd.asks and self.config.dtd.teacher == "global_frozen"

    def receive(self, weights: Weights) -> None:
        """Be this model from now on."""
        self.weights = weights
        if self.asked:
            self.lent.load(weights)

    def evidence(self, smashed: Mapping[int, SmashedBatch], kept: Mapping[int, Kept]) -> dict[int, Tensor]:
        """[b, N] evidence of each batch, without graph; nothing where nobody asks.

        A single pass where statistics are the same for all clients, which costs least; ``kept`` has those of
        clients that keep their own.
        """
        if not self.asked:
            return {}
        if self.host.blueprint.bn == "average":
            return self._pass(smashed)
        found: dict[int, Tensor] = {}
        for client, batch in smashed.items():
            if client in kept:
                self.lent.load({**self.weights, **kept[client].buffers})
            found |= self._pass({client: batch})
        return found

    def _pass(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Tensor]:
        features = cutting.merged([batch.activations for batch in smashed.values()])
        sizes = [len(batch.labels) for batch in smashed.values()]
        with torch.no_grad(), self.host.autocast():
            logits = torch.cat([self.lent.module(some) for some in _in_turn(features, sum(sizes))])
        found = evidence(logits, self.config.evidence).to(self.host.dtype)
        return dict(zip(smashed, found.split(sizes), strict=True))


def _in_turn(features: Values, count: int) -> list[Values]:
    """Of ``count`` rows, as many at once as memory surely has room for."""
    first = features if isinstance(features, torch.Tensor) else features[0]
    size = batch_size(first[0].numel())
    return cutting.split(features, [min(size, count - start) for start in range(0, count, size)])
