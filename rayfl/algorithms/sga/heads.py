"""FedSGA's heads in the place of a backbone's last linear layer, with the stream that they are drawn from."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead
from rayfl.algorithms.sga.interfaces import HEAD
from rayfl.errors import UserError
from rayfl.models.blocks import Backbone
from rayfl.seeding import derive, generator


def with_harmoniser(model: nn.Sequential, seed: int) -> Backbone:
    """The backbone with FedSGA's head for a single depth in place of its own, to compare others with it."""
    blocks = list(model._modules.items())
    classifier, blocks[-1] = without_classifier(model, blocks[-1])
    with drawing(seed) as draw:
        head = Harmoniser(classifier.in_features, classifier.out_features, 1, draw)
    return Backbone(OrderedDict([*blocks, (HEAD, head)]), cuts=getattr(model, "cuts", ()))


@contextmanager
def drawing(seed: int) -> Iterator[torch.Generator]:
    """The stream of the method's own layers. Torch's, which draw when made, leave the caller's alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "fedsga layers"))
        yield generator(seed, "fedsga")


def without_classifier(
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


def configured(
    config: SGAConfig, classifier: nn.Linear, sizes: Sequence[int], draw: torch.Generator
) -> Harmoniser | PlainHead:
    """The head for candidates of these pooled ``sizes``."""
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
