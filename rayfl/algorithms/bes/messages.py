"""What BESplit's main server answers."""

from dataclasses import dataclass

from torch import Tensor

from rayfl.messages import Gradient, sent_as


@dataclass(frozen=True)
class Lesson(Gradient):
    """The gradient at the cut, and what the teacher makes of the same batch."""

    evidence: Tensor | None = sent_as("evidence")
    """[b, N] evidence, without graph; None where no auxiliary model learns from it."""
