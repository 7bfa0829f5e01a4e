"""Cutting a backbone between its blocks, and putting it back together.

A child called ``layer1_0`` is shown as ``layer1.0``: block 0 of stage ``layer1``. Either spelling names the
cut after that block, and the stage's name alone names the cut after its last block.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from rayfl.errors import UserError
from rayfl.models.blocks import Backbone


def block_names(model: nn.Sequential) -> list[str]:
    """The names of the blocks in order, stages with a dot: ``["stem", "layer1.0", ..., "head"]``."""
    return [_shown(name) for name, _ in _children(model)]


def legal_cuts(model: nn.Sequential) -> list[str]:
    """The blocks a cut may come after: all but the last. A stage's name stands for its last block."""
    return block_names(model)[:-1]


def cut(model: nn.Sequential, *after: str | int) -> tuple[nn.Sequential, ...]:
    """The ``len(after) + 1`` consecutive slices of ``model``, cut after each named block.

    An entry is a block's name, a stage's name, or the number of blocks kept below the cut. The slices share
    the model's modules and keep their names, so the union of their state dicts is that of the whole.
    Raises UserError unless the cuts go up strictly, fall between blocks and leave no slice empty.
    """
    _refuse_inside(model, after)
    edges = [0, *positions(block_names(model), after), len(model)]
    children = _children(model)
    return tuple(
        _sequential(OrderedDict(children[start:stop]), model.training) for start, stop in pairwise(edges)
    )


def positions(names: Sequence[str], after: Sequence[str | int]) -> list[int]:
    """How many of the blocks ``names`` lie below each cut; raises UserError as :func:`cut` does."""
    found = [_position(names, name) for name in after]
    if any(low >= high for low, high in pairwise(found)):
        order = ", ".join(names[:-1])
        raise UserError(
            f"cuts must go up through the model, got {', '.join(map(str, after))}: its order is {order}"
        )
    return found


def join(*parts: nn.Sequential) -> nn.Sequential:
    """The model whose consecutive slices are ``parts``; it shares their modules and keeps their names.

    Raises UserError if two parts hold a block of the same name.
    """
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for part in parts:
        for name, block in _children(part):
            if name in blocks:
                raise UserError(f"parts to join must hold different blocks, got '{_shown(name)}' twice")
            blocks[name] = block
    return _sequential(blocks, training=all(part.training for part in parts))


def default_cut(model: nn.Sequential) -> str:
    """A sensible single cut: the model's own, or after its first stage, or else after the first block."""
    return default_cuts(model, 1)[0]


def default_cuts(model: nn.Sequential, n: int) -> list[str]:
    """``n`` sensible cuts, going up: spread over the model's own, its stages or its blocks, if enough.

    Raises UserError for more cuts than the model has.
    """
    legal = legal_cuts(model)
    if not 0 <= n <= len(legal):
        raise UserError(
            f"{n} cuts can't be placed in a model of {len(legal) + 1} blocks: ask for 0 to {len(legal)}"
        )
    names = block_names(model)
    stages = [stage for stage in _stages(names) if _position_of_stage(names, stage) < len(names)]
    own = list(model.cuts) if isinstance(model, Backbone) else []
    options = next((cuts for cuts in (own, stages) if cuts and n <= len(cuts)), legal)
    return [options[i * len(options) // n] for i in range(n)]


def _position(names: Sequence[str], after: str | int) -> int:
    legal = ", ".join(names[:-1]) or "none, it has a single block"
    if isinstance(after, int) and not isinstance(after, bool):
        position = after
    elif _shown(str(after)) in names:
        position = names.index(_shown(str(after))) + 1
    elif after in _stages(names):
        position = _position_of_stage(names, str(after))
    else:
        raise UserError(f"no block is called '{after}': cut after one of {legal}")
    if not 0 < position < len(names):
        raise UserError(f"a cut must leave a block on both sides, got '{after}': cut after one of {legal}")
    return position


def _refuse_inside(model: nn.Sequential, after: Sequence[str | int]) -> None:
    """A cut falls between blocks: a place inside one is told apart from a slip of the pen."""
    names = block_names(model)
    for wanted in after:
        if wanted in [*names, *_stages(names)]:
            continue
        for name, block in zip(names, model, strict=True):
            hint = getattr(block, "cut_hint", None)
            for inner, _ in block.named_modules():
                # Where a block took in whole stages, their own names mean it as well.
                if wanted == f"{name}.{inner}" or (hint and f".{inner}".endswith(f".{wanted}")):
                    legal = ", ".join(names[:-1])
                    raise UserError(
                        f"no cut can fall inside block '{name}', got '{wanted}': cut after one of {legal}"
                        + (f", or {hint}" if hint else "")
                    )


def _stages(names: Sequence[str]) -> list[str]:
    """The parts before the dot, in order, each once."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names if "." in name))


def _position_of_stage(names: Sequence[str], stage: str) -> int:
    return max(i for i, name in enumerate(names, start=1) if name.rpartition(".")[0] == stage)


def _children(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    # named_children would skip the second appearance of a module used twice, such as a shared activation.
    return list(zip(model._modules, model, strict=True))


def _shown(child: str) -> str:
    return re.sub(r"_(\d+)$", r".\1", child)


def _sequential(blocks: OrderedDict[str, nn.Module], training: bool) -> nn.Sequential:
    model = nn.Sequential(blocks)
    # The flag of the container alone: a new one is in train mode whatever its blocks are in.
    model.training = training
    return model
