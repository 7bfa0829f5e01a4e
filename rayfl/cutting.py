"""What crosses a cut is a tensor or a tuple of tensors: the same few operations on either."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

Values = Tensor | tuple[Tensor, ...]
"""[b, *shape], or several of them with the same b."""


def each(function: Callable[..., Any], *values: Values) -> Any:
    """``function`` of the tensors, or a tuple with ``function`` of the first of each, of the second, ..."""
    if isinstance(values[0], Tensor):
        return function(*values)
    return tuple(function(*tensors) for tensors in zip(*values, strict=True))


def detached(values: Values) -> Values:
    """The values without graph: what is sent."""
    result: Values = each(Tensor.detach, values)
    return result


def entering(values: Values) -> Values:
    """Received values as the leaves of a new graph."""
    result: Values = each(lambda value: value.detach().requires_grad_(value.is_floating_point()), values)
    return result


def backward(outputs: Values, gradients: Values) -> None:
    """Carry the gradients of the outputs down their graph."""
    pairs = [(outputs, gradients)] if isinstance(outputs, Tensor) else zip(outputs, gradients, strict=True)
    carried = [(output, gradient) for output, gradient in pairs if output.requires_grad]
    if carried:
        torch.autograd.backward(*zip(*carried, strict=True))


def gradients(inputs: Values) -> Values:
    """The gradients that reached leaves made by :func:`entering`; zeros where nothing did."""
    result: Values = each(lambda value: torch.zeros_like(value) if value.grad is None else value.grad, inputs)
    return result


def times(values: Values, factor: float) -> Values:
    """The values, each multiplied by ``factor``."""
    result: Values = each(lambda value: value * factor, values)
    return result


def merged(batches: Sequence[Values]) -> Values:
    """Batches one after the other, as one."""
    result: Values = each(lambda *tensors: torch.cat(tensors), *batches)
    return result


def split(values: Values, sizes: Sequence[int]) -> list[Values]:
    """The batches of ``sizes`` that :func:`merged` put together."""
    bounds = pairwise(accumulate(sizes, initial=0))
    return [each(lambda value, rows=slice(*bound): value[rows], values) for bound in bounds]
