"""What each block costs: parameters, buffers, forward FLOPs and the size of its output."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rayfl.cutting import Values, each
from rayfl.models.blocks import Shape
from rayfl.models.config import ModelConfig
from rayfl.models.cut import block_names, positions
from rayfl.models.zoo import assemble


@dataclass(frozen=True)
class BlockCost:
    """One block, or several taken together. Sizes are per replica, FLOPs and output per sample."""

    name: str
    """The block's name as ``rayfl.models.block_names`` gives it; ``first..last`` for several."""

    params: int
    """Learnable elements."""

    buffers: int
    """Buffer elements; a BatchNorm over C channels has 2 C + 1."""

    param_bytes: int
    """Bytes of the learnable elements in the model's dtype."""

    buffer_bytes: int
    """Bytes of the buffers; a BatchNorm's batch counter is an int64."""

    flops: int
    """FLOPs of a forward pass per sample, two per multiply-accumulate; see :func:`block_costs`."""

    output_shape: tuple[int, ...] | tuple[tuple[int, ...], ...]
    """Shape of the output per sample, without the batch axis; of a tuple of tensors, the shape of each."""

    output_elements: int
    """Elements of the output per sample: A, the size of the smashed data if the cut comes here."""


_shapes: dict[object, list[tuple[Any, ...]]] = {}


def output_shapes(model: nn.Sequential, input_shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """What each block puts out per sample: its shape, or the shape of each of a tuple of tensors.

    Remembered in this process, as every party that builds a model asks anew.
    """
    key = input_shape, repr(model)
    if key not in _shapes:
        _shapes[key] = [cost.output_shape for cost in block_costs(model, input_shape)]
    return _shapes[key]


def block_costs(model: nn.Sequential, input_shape: tuple[int, ...]) -> list[BlockCost]:
    """The cost of every block of a Sequential for inputs [B, *input_shape], bottom first.

    Runs a copy without storage on torch's meta device in eval mode: nothing is computed and the model isn't
    touched. FLOPs are those that ``torch.utils.flop_counter`` knows, convolutions and matrix products at two
    per multiply-accumulate; normalisation, activations, pooling and biases count as nothing.
    """
    shadow = _without_storage(model).eval()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    # Two samples, since BatchNorm without running statistics refuses a single value per channel.
    batch = 2
    x: Values = torch.empty(batch, *input_shape, dtype=dtype, device="meta")
    costs = []
    for name, block in zip(block_names(model), shadow, strict=True):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            x = block(x)
        params, buffers = list(block.parameters()), list(block.buffers())
        costs.append(
            BlockCost(
                name=name,
                params=sum(p.numel() for p in params),
                buffers=sum(b.numel() for b in buffers),
                param_bytes=sum(p.numel() * p.element_size() for p in params),
                buffer_bytes=sum(b.numel() * b.element_size() for b in buffers),
                flops=counter.get_total_flops() // batch,
                output_shape=each(lambda z: tuple(z.shape[1:]), x),
                output_elements=sum(z[0].numel() for z in ((x,) if isinstance(x, Tensor) else x)),
            )
        )
    return costs


@lru_cache(maxsize=256)
def model_costs(config: ModelConfig, input_shape: Shape, num_classes: int) -> tuple[BlockCost, ...]:
    """:func:`block_costs` of what ``build`` would make, without making it; remembered in this process."""
    with torch.device("meta"):
        model = assemble(config, input_shape, num_classes)
    return tuple(block_costs(model, input_shape))


def part_costs(costs: Sequence[BlockCost], *after: str | int) -> tuple[BlockCost, ...]:
    """The cost of each slice that ``cut(model, *after)`` would make; with no cut, of the whole model.

    Raises UserError for the cuts that ``cut`` refuses.
    """
    edges = [0, *positions([cost.name for cost in costs], after), len(costs)]
    return tuple(_total(costs[start:stop]) for start, stop in pairwise(edges))


def _total(costs: Sequence[BlockCost]) -> BlockCost:
    first, last = costs[0], costs[-1]
    return BlockCost(
        name=first.name if len(costs) == 1 else f"{first.name}..{last.name}",
        params=sum(cost.params for cost in costs),
        buffers=sum(cost.buffers for cost in costs),
        param_bytes=sum(cost.param_bytes for cost in costs),
        buffer_bytes=sum(cost.buffer_bytes for cost in costs),
        flops=sum(cost.flops for cost in costs),
        output_shape=last.output_shape,
        output_elements=last.output_elements,
    )


def _without_storage(model: nn.Sequential) -> nn.Sequential:
    """A deep copy whose tensors are on the meta device; the memo keeps the real ones from being copied."""
    memo: dict[int, object] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    for b in model.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return copy.deepcopy(model, memo)
