"""Where the model that FedSGA trains can be cut, and who holds what of it."""

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from rayfl import models
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead
from rayfl.algorithms.sga.signals import Signal, pooled
from rayfl.models.blocks import Backbone

PROMPTS, SIGNAL, HEAD = "prompts", "signal", "harmoniser"


class Interfaces(Backbone):
    """A backbone that knows its candidate cuts; called, it goes through all of its blocks."""

    ends: tuple[int, ...]
    """Blocks below each candidate, prompts and signal counted."""


class Truncated(Interfaces):
    """``server_body: none``: from the interface that the head's buffer ``depth`` names to the head."""

    def forward(self, inputs: Tensor) -> Tensor:
        head, signal = self[-1], self.get_submodule(SIGNAL)
        assert isinstance(head, Harmoniser | PlainHead)
        assert isinstance(signal, Signal)
        below = nn.Sequential(*self[: self.ends[int(head.depth) - 1]])
        result: Tensor = head(pooled(below(inputs), signal.pool, signal.num_prompts))
        return result


class Part(nn.Sequential):
    """What one party holds of the model."""

    ends: tuple[int, ...]
    """Its blocks below each candidate; empty where it holds none of those."""


def parts(model: nn.Sequential) -> dict[str, nn.Sequential]:
    """Clients hold the blocks up to the deepest candidate, the main server those above the shallowest."""
    assert isinstance(model, Interfaces)
    blocks = list(model._modules.items())
    client, main = Part(OrderedDict(blocks[: model.ends[-1]])), Part(OrderedDict(blocks[-1:]))
    client.ends, main.ends = model.ends, ()
    if not isinstance(model, Truncated):
        main = Part(OrderedDict(blocks[model.ends[0] :]))
        main.ends = tuple(end - model.ends[0] for end in model.ends)
    return {"client": client, "main": main}


@dataclass(frozen=True)
class Candidate:
    """A cut that clients choose from."""

    name: str
    """The backbone's block before it."""
    blocks: tuple[str, ...]
    """All blocks up to it."""


def named(model: nn.Sequential) -> tuple[Candidate, ...]:
    """The candidates of an extended model, going up."""
    assert isinstance(model, Interfaces)
    names = models.block_names(model)
    found = []
    for end in model.ends:
        blocks = tuple(names[:end])
        found.append(
            Candidate(next(name for name in reversed(blocks) if name not in (PROMPTS, SIGNAL)), blocks)
        )
    return tuple(found)


def segment(part: Part, number: int) -> list[str]:
    """State-dict entries between candidates ``number - 1`` and ``number`` (from 1), without the prompts."""
    start, end = part.ends[number - 2] if number > 1 else 0, part.ends[number - 1]
    children = list(part._modules.items())[start:end]
    return [
        f"{name}.{key}" for name, block in children if block and name != PROMPTS for key in block.state_dict()
    ]
