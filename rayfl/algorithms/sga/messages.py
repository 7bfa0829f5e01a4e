"""What FedSGA's parties send each other, beside weights, gradients and observations."""

from dataclasses import dataclass

from torch import Tensor

from rayfl.cutting import Values
from rayfl.messages import SmashedBatch, sent_as


@dataclass(frozen=True)
class Decision:
    """How deep a client cuts this round."""

    sufficiency: float = sent_as("control")
    """r in [0, 1]."""
    depth: int = sent_as("control")
    """The number of the candidate, from 1."""


@dataclass(frozen=True)
class DeepBatch(SmashedBatch):
    """One batch at the candidate cut that its sender has chosen."""

    depth: int = sent_as("control")
    """The number of that candidate, from 1."""


@dataclass(frozen=True)
class Probe:
    """The same batch at the shallowest and at the reference candidate."""

    shallow: Values = sent_as("activation")
    reference: Values = sent_as("activation")
    labels: Tensor = sent_as("label")


@dataclass(frozen=True)
class ProbeLosses:
    """What the server found of a probe."""

    shallow: float = sent_as("control")
    reference: float = sent_as("control")


@dataclass(frozen=True)
class Verdict:
    """Whether the shallowest cut was good enough (eq. 7), and by how much."""

    sufficient: bool = sent_as("control")
    ratio: float = sent_as("control")
    """Loss at the shallowest over loss at the reference candidate: for the record."""
    inputs: tuple[float, ...] = sent_as("control")
    """[4] a, delta, q, last r of a client that decides itself; [0] where the server knows them."""
