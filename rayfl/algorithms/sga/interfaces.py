"""The model that FedSGA trains: a backbone with prompts, a signal, a head of its own, and candidate cuts."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rayfl import models
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead
from rayfl.algorithms.sga.prompts import PromptKind, Prompts
from rayfl.algorithms.sga.signals import Signal, pooled
from rayfl.errors import UserError
from rayfl.models.blocks import Backbone, Shape
from rayfl.models.cut import positions as places_of
from rayfl.seeding import derive, generator

PROMPTS, SIGNAL, HEAD = "prompts", "signal", "harmoniser"


_known_shapes: dict[object, list[tuple[int, ...]]] = {}


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


def extended(config: SGAConfig, model: nn.Sequential, input_shape: Shape, seed: int) -> Interfaces:
    """The backbone with prompts after its first block, a signal after p_1, and the head replaced.

    Raises UserError for candidates that are no cuts, and for a model that doesn't end on a linear layer.
    """
    names = models.block_names(model)
    after = candidates(config, model)
    positions = places_of(names, after)
    config.reference(len(positions))
    shapes = _output_shapes(model, input_shape)
    pool = getattr(model[-1], "pool", "mean")
    blocks = list(model._modules.items())
    classifier, blocks[-1] = _without_classifier(model, blocks[-1])

    several = [names[position - 1] for position in positions if not shapes[position - 1]]
    if several:
        raise UserError(
            f"fedsga pools one tensor at a cut, block '{several[0]}' puts out several: cut elsewhere"
        )
    kind, place = _prompt_kind(config, shapes[0])
    count = config.prompts if kind else 0
    sizes = [_channels(shapes[position - 1]) for position in positions]
    factor = config.phi_lr_mult if config.phi_s == "learned" else 0.0
    with _drawing(seed) as draw:
        head = _head(config, classifier, sizes, draw)
        signal = Signal(sizes[0], head.d_z, pool, count if kind == "tokens" else 0, factor, draw)
    if config.phi_s != "learned":
        signal.requires_grad_(False)

    chain: list[tuple[str, nn.Module]] = []
    ends = []
    for position, block in enumerate(blocks):
        if position == place and kind and count:
            shape = input_shape if kind == "pad" else shapes[0]
            prompts = Prompts(kind, count, shape, config.prompt_init_std, config.prompt_lr_mult, draw)
            chain.append((PROMPTS, prompts))
        if position in positions:
            if position == positions[0]:
                chain.append((SIGNAL, signal))
            ends.append(len(chain))
            if config.server_body == "none" and position == positions[-1]:
                break
        chain.append(block)
    chain.append((HEAD, head))
    made = (Truncated if config.server_body == "none" else Interfaces)(OrderedDict(chain))
    made.ends = tuple(ends)
    return made


def with_harmoniser(model: nn.Sequential, seed: int) -> Backbone:
    """The backbone with FedSGA's head for a single depth in place of its own, to compare others with it."""
    blocks = list(model._modules.items())
    classifier, blocks[-1] = _without_classifier(model, blocks[-1])
    with _drawing(seed) as draw:
        head = Harmoniser(classifier.in_features, classifier.out_features, 1, draw)
    return Backbone(OrderedDict([*blocks, (HEAD, head)]), cuts=getattr(model, "cuts", ()))


@contextmanager
def _drawing(seed: int) -> Iterator[torch.Generator]:
    """The stream of the method's own layers. Torch's, which draw when made, leave the caller's alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "fedsga layers"))
        yield generator(seed, "fedsga")


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


@contextmanager
def evaluating(part: nn.Module) -> Iterator[None]:
    """In evaluation mode and without graph; statistics of normalisation stay as they are."""
    part.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        part.train()


def segment(part: Part, number: int) -> list[str]:
    """State-dict entries between candidates ``number - 1`` and ``number`` (from 1), without the prompts."""
    start, end = part.ends[number - 2] if number > 1 else 0, part.ends[number - 1]
    children = list(part._modules.items())[start:end]
    return [
        f"{name}.{key}" for name, block in children if block and name != PROMPTS for key in block.state_dict()
    ]


def candidates(config: SGAConfig, model: nn.Sequential) -> Sequence[str | int]:
    """The candidate cuts; by default up to three."""
    if config.candidates is not None:
        if not config.candidates:
            raise UserError("algorithm.candidates is empty: name at least one cut")
        return config.candidates
    return models.default_cuts(model, min(3, len(models.legal_cuts(model))))


def _without_classifier(
    model: nn.Sequential, last: tuple[str, nn.Module | None]
) -> tuple[nn.Linear, tuple[str, nn.Module]]:
    """The last linear layer, and its block without it."""
    name, block = last
    assert block is not None
    linear = [(path, layer) for path, layer in block.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(
            f"fedsga puts its head in the place of a linear classifier, block '{name}' has none: take a "
            f"model for classification"
        )
    path, layer = linear[-1]
    if not path:
        return layer, (name, nn.Identity())
    parent, _, child = path.rpartition(".")
    setattr(block.get_submodule(parent), child, nn.Identity())
    return layer, (name, block)


def _prompt_kind(config: SGAConfig, shape: tuple[int, ...]) -> tuple[PromptKind | None, int]:
    """How prompts enter, and before which block."""
    if len(shape) == 2:
        return "tokens", 1
    if config.cnn_prompt == "none":
        return None, 1
    return config.cnn_prompt, 0 if config.cnn_prompt == "pad" else 1


def _output_shapes(model: nn.Sequential, input_shape: Shape) -> list[tuple[int, ...]]:
    """What each block puts out per sample, () where that is several tensors; remembered in this process."""
    key = input_shape, repr(model)
    if key not in _known_shapes:
        _known_shapes[key] = [
            tuple(size for size in cost.output_shape if isinstance(size, int))
            for cost in models.block_costs(model, input_shape)
        ]
    return _known_shapes[key]


def _channels(shape: tuple[int, ...]) -> int:
    return shape[-1] if len(shape) == 2 else shape[0]


def _head(
    config: SGAConfig, classifier: nn.Linear, sizes: Sequence[int], draw: torch.Generator
) -> Harmoniser | PlainHead:
    own = sizes if config.server_body == "none" else ()
    if not config.harmonised:
        return PlainHead(classifier, own)
    return Harmoniser(
        config.d_hid if own else classifier.in_features,
        classifier.out_features,
        len(sizes),
        draw,
        d_z=config.d_z,
        d_hid=config.d_hid,
        d_e=config.d_e,
        e_init_std=config.e_init_std,
        plain=config.projector == "plain",
        own_inputs=own,
    )
