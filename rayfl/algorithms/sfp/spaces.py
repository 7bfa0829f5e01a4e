"""Where H-SFP takes its moments: feature maps, coarse grids of them, or vectors."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl import models
from rayfl.algorithms.sfp import covariances
from rayfl.algorithms.sfp.checks import check
from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.errors import UserError
from rayfl.models import cut, default_cuts, replace_batch_norm
from rayfl.models.blocks import Shape
from rayfl.seeding import derive

NARROW, WIDEN, POOL = "narrow", "widen", "pool"
"""Blocks of our own: the last of the client, the first and the last of the edge."""


class Pool(nn.Module):
    """Maps [b, C, H, W] to their means [b, C, 1, 1]; vectors as they are."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3), keepdim=True) if features.dim() == 4 else features


class Border(nn.Identity):
    """Maps as they are, where the tier above draws such maps, and masks of images, itself."""

    def __init__(self, size: tuple[int, int], image: tuple[int, int]) -> None:
        """Height and width of each."""
        super().__init__()
        self.size, self.image = size, image


class Widen(nn.Module):
    """Coarse maps back to [b, C, height, width]."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = height, width

    def forward(self, features: Tensor) -> Tensor:
        return functional.interpolate(features, self.size, mode="bilinear", align_corners=False)


def extended(config: HSFPConfig, model: nn.Sequential, input_shape: Shape, seed: int) -> nn.Sequential:
    """The backbone with ``narrow``, ``widen`` and ``pool`` at the borders of its three parts.

    An edge's maps are pooled wherever the part above them can take that, unless it makes maps of its own.
    Raises UserError for cuts at which there is no single map or vector, or one too large for ``full``.
    """
    after = config.cut_layers or default_cuts(model, 2)
    client, edge, cloud = cut(model, *after)
    names, shapes = models.block_names(model), models.output_shapes(model, input_shape)
    borders = len(client) - 1, len(client) + len(edge) - 1
    lower, upper = (shapes[border] for border in borders)
    lower_name, upper_name = (names[border] for border in borders)
    check(config, shapes[-1])
    positions = len(shapes[-1]) == 3 and config.seg_mode == "pixel_moments"
    for shape, name in ((lower, lower_name), (upper, upper_name)):
        if len(shape) not in ((3,) if positions else (1, 3)) or not isinstance(shape[0], int):
            raise UserError(
                f"hsfp takes moments of one map or vector, block '{name}' puts out {shape}: set "
                f"algorithm.cut_layers to other blocks"
            )
    poolable = (len(upper), len(shapes[-1])) == (3, 1) and _takes(cloud, (upper[0], 1, 1))
    if config.edge_norm == "group":
        edge = _sequential(replace_batch_norm(edge))
    narrow: nn.Module = nn.Identity()
    widen: nn.Module = nn.Identity()
    pool: nn.Module = Pool() if poolable else nn.Identity()
    if positions:
        narrow, pool = (Border(shape[1:], shapes[-1][1:]) for shape in (lower, upper))
    elif len(lower) == 3 and config.proto_space == "grid":
        narrow, widen = nn.AdaptiveAvgPool2d(config.grid), Widen(*lower[1:])
    elif len(lower) == 3 and config.proto_space == "vector":
        if not poolable:
            raise UserError(
                f"algorithm.proto_space=vector needs a cloud part that takes pooled maps, block "
                f"'{names[borders[1] + 1]}' takes {upper}: set algorithm.cut_layers or another model"
            )
        narrow, edge = Pool(), _vector_edge(lower[0], upper[0], seed)
    if config.covariance == "full":
        for name, last, shape in ((lower_name, narrow, lower), (upper_name, pool, upper)):
            covariances.check(math.prod(models.output_shapes(nn.Sequential(last), shape)[0]), name)
    return nn.Sequential(
        OrderedDict(
            [
                *client.named_children(),
                (NARROW, narrow),
                (WIDEN, widen),
                *edge.named_children(),
                (POOL, pool),
                *cloud.named_children(),
            ]
        )
    )


def parts(model: nn.Sequential) -> dict[str, nn.Sequential]:
    """Client, edge and cloud of an extended model."""
    client, edge, main = cut(model, NARROW, POOL)
    return {"client": client, "edge": edge, "main": main}


def _takes(part: nn.Sequential, shape: tuple[int, ...]) -> bool:
    """Whether ``part`` runs on inputs of ``shape``; a layer that flattens larger maps doesn't."""
    try:
        models.output_shapes(part, shape)
    except RuntimeError:
        return False
    return True


def _vector_edge(size: int, out: int, seed: int) -> nn.Sequential:
    """Convolutions see nothing on a vector: two layers over its channels in their place."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "hsfp vector edge"))
        layers = [nn.Conv2d(size, out, 1), models.group_norm(out), nn.ReLU()]
        layers += [nn.Conv2d(out, out, 1), models.group_norm(out), nn.ReLU()]
    return nn.Sequential(OrderedDict([("vector", nn.Sequential(*layers))]))


def _sequential(module: nn.Module) -> nn.Sequential:
    assert isinstance(module, nn.Sequential)
    return module
