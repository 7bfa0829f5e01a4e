"""From a backbone to the model that FedSGA trains: with prompts, a signal and a head of its own."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from rayfl import models
from rayfl.algorithms.sga.checks import check_location, check_projector
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.heads import configured, drawing, without_classifier
from rayfl.algorithms.sga.interfaces import HEAD, PROMPTS, SIGNAL, Interfaces, Truncated
from rayfl.algorithms.sga.prompts import PromptKind, Prompts
from rayfl.algorithms.sga.signals import ProjectingSignal, Signal
from rayfl.errors import UserError
from rayfl.models.blocks import Shape
from rayfl.models.cut import positions as places_of


def extended(config: SGAConfig, model: nn.Sequential, input_shape: Shape, seed: int) -> Interfaces:
    """The backbone with prompts after its first block, a signal after p_1, and the head replaced.

    Raises UserError for candidates that are no cuts, and for a model that doesn't end on a linear layer.
    """
    names = models.block_names(model)
    after = candidates(config, model)
    positions = places_of(names, after)
    config.reference(len(positions))
    check_location(config)
    shapes = models.output_shapes(model, input_shape)
    pool = getattr(model[-1], "pool", "mean")
    blocks = list(model._modules.items())
    classifier, blocks[-1] = without_classifier(model, blocks[-1])

    several = [names[at - 1] for at in positions if not isinstance(shapes[at - 1][0], int)]
    if several:
        raise UserError(
            f"fedsga pools one tensor at a cut, block '{several[0]}' puts out several: cut elsewhere"
        )
    kind, place = _prompt_kind(config, shapes[0])
    count = config.prompts if kind else 0
    sizes = [_channels(shapes[position - 1]) for position in positions]
    check_projector(config, names[positions[0] - 1], sizes[0], classifier.in_features)
    with drawing(seed) as draw:
        head = configured(config, classifier, sizes, draw)
        signal = _signal(config, sizes[0], head.d_z, pool, count if kind == "tokens" else 0, draw)

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


def candidates(config: SGAConfig, model: nn.Sequential) -> Sequence[str | int]:
    """The candidate cuts; by default up to three."""
    if config.candidates is not None:
        if not config.candidates:
            raise UserError("algorithm.candidates is empty: name at least one cut")
        return config.candidates
    return models.default_cuts(model, min(3, len(models.legal_cuts(model))))


def _prompt_kind(config: SGAConfig, shape: tuple[int, ...]) -> tuple[PromptKind | None, int]:
    """How prompts enter, and before which block."""
    if len(shape) == 2:
        return "tokens", 1
    if config.cnn_prompt == "none":
        return None, 1
    return config.cnn_prompt, 0 if config.cnn_prompt == "pad" else 1


def _channels(shape: tuple[int, ...]) -> int:
    return shape[-1] if len(shape) == 2 else shape[0]


def _signal(
    config: SGAConfig, size: int, d_z: int, pool: str, num_prompts: int, draw: torch.Generator
) -> Signal:
    factor = config.phi_lr_mult if config.phi_s == "learned" else 0.0
    # Drawn whether it is kept or not: the prompts, drawn next, are the same for every phi_s.
    own = ProjectingSignal(size, d_z, pool, num_prompts, factor, draw)
    if config.phi_s == "reuse_phi":
        return Signal(pool, num_prompts)
    return own.requires_grad_(config.phi_s == "learned")
