"""The evidence teacher: what the global model makes of the features that clients have sent anyway."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rayfl import cutting
from rayfl.algorithms.bes.evidence import evidence
from rayfl.cutting import Values
from rayfl.evaluation import batch_size
from rayfl.host import Host, Kept, Lent
from rayfl.messages import SmashedBatch, Weights


class Teacher:
    """The server-side model as it was when the round began, in evaluation mode."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.lent: Lent | None = None
        self.weights: Weights = {}

    def receive(self, weights: Weights) -> None:
        """Be this model until :meth:`leave`, if anybody asks."""
        self.leave()
        config = self.host.config.dtd
        if config.asks and config.teacher == "global_frozen":
            self.weights, self.lent = weights, self.host.borrow("main")
            self.lent.load(weights)
            self.lent.module.eval()

    def leave(self) -> None:
        """Give the module back."""
        if self.lent is not None:
            self.lent.module.train()
            self.host.give_back("main", self.lent)
            self.lent = None

    def evidence(self, smashed: Mapping[int, SmashedBatch], kept: Mapping[int, Kept]) -> dict[int, Tensor]:
        """[b, N] evidence of each batch, without graph; nothing where nobody asks.

        A single pass where statistics are the same for all clients, which costs least; ``kept`` has those of
        clients that keep their own.
        """
        if self.lent is None:
            return {}
        if self.host.blueprint.bn == "average":
            return self._pass(self.lent, smashed)
        found = {}
        for client, batch in smashed.items():
            if client in kept:
                self.lent.load({**self.weights, **kept[client].buffers})
            found |= self._pass(self.lent, {client: batch})
        return found

    def _pass(self, lent: Lent, smashed: Mapping[int, SmashedBatch]) -> dict[int, Tensor]:
        features = cutting.merged([batch.activations for batch in smashed.values()])
        sizes = [len(batch.labels) for batch in smashed.values()]
        with torch.no_grad(), self.host.autocast():
            logits = torch.cat([lent.module(some) for some in _in_turn(features, sum(sizes))])
        found = evidence(logits, self.host.config.evidence).to(self.host.dtype)
        return dict(zip(smashed, found.split(sizes), strict=True))


def _in_turn(features: Values, count: int) -> list[Values]:
    """Of ``count`` rows, as many at once as memory surely has room for."""
    first = features if isinstance(features, torch.Tensor) else features[0]
    size = batch_size(first[0].numel())
    return cutting.split(features, [min(size, count - start) for start in range(0, count, size)])
