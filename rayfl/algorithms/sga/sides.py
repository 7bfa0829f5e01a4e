"""The two sides of FedSGA's model in training: up to a candidate below, from there to the logits above."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead
from rayfl.algorithms.sga.interfaces import SIGNAL, Part
from rayfl.algorithms.sga.signals import Signal, pooled
from rayfl.cutting import Values
from rayfl.host import Learner


@dataclass(frozen=True)
class Below:
    """A client's side."""

    learner: Learner

    @property
    def part(self) -> Part:
        """The blocks up to the deepest candidate."""
        assert isinstance(self.learner.model, Part)
        return self.learner.model

    @property
    def signal(self) -> Signal:
        """The block behind p_1."""
        found = self.part.get_submodule(SIGNAL)
        assert isinstance(found, Signal)
        return found

    def run(self, features: Values, start: int, stop: int) -> Any:
        """From one candidate to another, of which 0 is the input; as they are from a candidate to itself."""
        if start == stop:
            return features
        ends = (0, *self.part.ends)
        return self.learner.forward(features, slice(ends[start], ends[stop]))


@dataclass(frozen=True)
class Above:
    """The main server's side."""

    learner: Learner
    signal: Signal
    """The clients' own, which says how to pool."""

    @property
    def part(self) -> Part:
        """The blocks above the shallowest candidate, if any, and the head."""
        assert isinstance(self.learner.model, Part)
        return self.learner.model

    @property
    def head(self) -> Harmoniser | PlainHead:
        """What puts features of all depths into one space, and classes out of it."""
        head = self.part[-1]
        assert isinstance(head, Harmoniser | PlainHead)
        return head

    def embed(self, features: Values, depth: int) -> Tensor:
        """Features that left a client at candidate ``depth``, through the rest of the backbone, to Z."""
        with self.learner.host.autocast():
            if self.part.ends:
                features = self.learner.forward(features, slice(self.part.ends[depth - 1], -1))
            else:
                assert isinstance(features, Tensor)
                features = pooled(features, self.signal.pool, self.signal.num_prompts)
            assert isinstance(features, Tensor)
            return self.head.embed(features, depth)

    def logits(self, embedded: Tensor) -> Tensor:
        """[b, d_z] to [b, Y]."""
        with self.learner.host.autocast():
            logits: Tensor = self.head.classifier(embedded)
        return logits
