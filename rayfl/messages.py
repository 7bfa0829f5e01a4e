"""What crosses a link: read-only dataclasses, and what each would weigh on a wire.

Whoever receives a message may read it only; clone a tensor before writing to it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from rayfl.cutting import Values

Weights = Mapping[str, Tensor]
"""State-dict entries by name: parameters and, as the ``bn`` policy says, buffers."""

SCALAR_BYTES = 8


def sent_as(kind: str, default: Any = MISSING) -> Any:
    """A field of a message that the ledger enters as ``kind``."""
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class SmashedBatch:
    """One batch at the cut: what a split client sends instead of its data."""

    activations: Values = sent_as("activation")
    """[b, *cut] output of the sender's last block, without graph; a tuple where that block gives one."""
    labels: Tensor = sent_as("label")
    """[b] int64."""


@dataclass(frozen=True)
class Activations:
    """A batch at a cut without its labels."""

    values: Values = sent_as("activation")
    """[b, *cut] output of the sender's last block, without graph; a tuple where that block gives one."""


@dataclass(frozen=True)
class Gradient:
    """The answer to a :class:`SmashedBatch` or :class:`Activations`."""

    values: Values = sent_as("gradient")
    """[b, *cut] derivative of the loss with respect to the activations, of their form."""


@dataclass(frozen=True)
class Update:
    """A party's weights after local work, with the mass they carry in an average."""

    weights: Weights = sent_as("weights")
    mass: float = sent_as("counts")
    """Sample count, or 1 where participants count alike."""


@dataclass(frozen=True)
class Relay:
    """A model on its way to the next party in a row."""

    weights: Weights = sent_as("weights")
    optimizer: Mapping[str, Any] = sent_as("aux")
    """Optimiser state that goes with it; often empty."""


@dataclass(frozen=True)
class PooledUpdate:
    """The updates of one block of client ids, summed where they were made (see ``tree``)."""

    sums: Weights
    """name -> float64 sum of mass * weights; integer entries hold the maximum."""
    dtypes: Mapping[str, Any]
    mass: float
    wire_bytes: Mapping[str, int]
    """kind -> bytes of the single updates, as if each had been sent by itself."""


def weigh(message: object) -> Counter[str]:
    """Bytes on a wire by kind: elements times element size for tensors, 8 for a scalar."""
    if isinstance(message, PooledUpdate):
        return Counter(message.wire_bytes)
    if is_dataclass(message) and not isinstance(message, type):
        total: Counter[str] = Counter()
        for part in fields(message):
            value = getattr(message, part.name)
            if is_dataclass(value):
                total += weigh(value)
            else:
                total[part.metadata.get("kind", "control")] += _size(value)
        return +total
    if isinstance(message, Mapping):
        return Counter({"weights": _size(message)})
    return +Counter({"control": _size(message)})


def _size(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_size(item) for item in value)
    return SCALAR_BYTES


def is_finite(message: object) -> bool:
    """Whether no number in a message is NaN or infinite."""
    if isinstance(message, Tensor):
        # The sum is quick, and finite only of finite numbers; where it overflows, the numbers are looked at.
        return math.isfinite(message.sum().item()) or bool(message.isfinite().all())
    if isinstance(message, float):
        return math.isfinite(message)
    if isinstance(message, Mapping):
        return all(is_finite(value) for value in message.values())
    if isinstance(message, (list, tuple)):
        return all(is_finite(value) for value in message)
    if is_dataclass(message) and not isinstance(message, type):
        return all(is_finite(getattr(message, part.name)) for part in fields(message))
    return True


def moved(message: Any, device: str) -> Any:
    """The same message with its tensors on another device."""
    if isinstance(message, Tensor):
        return message.to(device)
    if isinstance(message, Mapping):
        return {key: moved(value, device) for key, value in message.items()}
    if isinstance(message, tuple):
        return tuple(moved(value, device) for value in message)
    if is_dataclass(message) and not isinstance(message, type):
        return replace(
            message, **{part.name: moved(getattr(message, part.name), device) for part in fields(message)}
        )
    return message
