"""From a backbone to the model that FedSGA trains: with prompts, a signal and a head of its own."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rayfl import models
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead
from rayfl.algorithms.sga.interfaces import HEAD, PROMPTS, SIGNAL, Interfaces, Truncated
from rayfl.algorithms.sga.prompts import PromptKind, Prompts
from rayfl.algorithms.sga.signals import Signal
from rayfl.errors import UserError
from rayfl.models.blocks import Backbone, Shape
from rayfl.models.cut import positions as places_of
from rayfl.seeding import derive, generator


def extended(config: SGAConfig, model: nn.Sequential, input_shape: Shape, seed: int) -> Interfaces:
    """The backbone with prompts after its first block, a signal after p_1, and the head replaced.

    Raises UserError for candidates that are no cuts, and for a model that doesn't end on a linear layer.
    """
    names = models.block_names(model)
    after = candidates(config, model)
    positions = places_of(names, after)
    config.reference(len(positions))
    shapes = models.output_shapes(model, input_shape)
    pool = getattr(model[-1], "pool", "mean")
    blocks = list(model._modules.items())
    classifier, blocks[-1] = _without_classifier(model, blocks[-1])

    several = [names[at - 1] for at in positions if not isinstance(shapes[at - 1][0], int)]
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
