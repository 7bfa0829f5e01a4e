"""Features by position where the task is segmentation: a class is what the mask says of a position."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from rayfl.algorithms.sfp.gaussians import normal
from rayfl.moments import Moments, join


def pool(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps [..., H, W] as area averages [..., *size]; a pixel on a border counts in part on either side."""
    return _sums(maps, size) / (maps.shape[-2] * maps.shape[-1])


def shrink(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks [n, H, W] as [n, *size] uint8: 1 where lesion (pixels of 1) makes up half of the area or more."""
    areas = _sums((masks == 1).double(), size)
    return (2 * areas >= masks.shape[-2] * masks.shape[-1]).to(torch.uint8)


def by_position(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Maps [n, C, h, w] and masks [n, h, w] as features [n*h*w, C] with labels [n*h*w] int64."""
    return maps.movedim(1, -1).flatten(0, 2), masks.flatten().long()


def balanced(
    features: Tensor, labels: Tensor, generator: torch.Generator, most: int = 256
) -> tuple[Tensor, Tensor]:
    """Some of features [N, C] with their labels [N]: at most ``most``, drawn without replacement.

    Every class present has an equal share; what a rare class leaves of its own is not filled with others.
    """
    classes = labels.unique().tolist()
    chosen = []
    for label in classes:
        places = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(places), generator=generator)[: most // len(classes)]
        chosen.append(places[order.to(places.device)])
    rows = torch.cat(chosen) if chosen else labels.new_empty(0)
    return features[rows], labels[rows]


def draw(
    moments: Mapping[int, Moments],
    masks: Tensor,
    generator: torch.Generator,
    blur: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """Maps [n, C, h, w] for masks [n, h, w]: mean + sqrt(variance + eps) * noise of the position's class.

    ``moments`` are of features [C], of one class at least; a class without any has those of all others
    together. The noise is standard normal, with ``blur`` also alike between neighbours, as features are.
    The generator is the CPU's, the maps are where the moments are.
    """
    rest = join(moments.values())
    tables = [moments.get(label, rest) for label in range(int(masks.max()) + 1)]
    masks = masks.long().to(rest.mean.device)
    means, deviations = (
        torch.stack(rows)[masks].movedim(-1, 1)
        for rows in ([one.mean for one in tables], [(one.variance + eps).sqrt() for one in tables])
    )
    noise = normal(means.shape, means, generator)
    return means + deviations * (smooth(noise) if blur else noise)


def smooth(noise: Tensor) -> Tensor:
    """White noise [n, C, h, w] of unit variance summed over 3x3 boxes, and of unit variance again."""
    sums = functional.avg_pool2d(noise, 3, stride=1, padding=1, divisor_override=1)
    # At a border fewer positions make up a sum: 9 inside, 6 along a side, 4 in a corner.
    terms = functional.avg_pool2d(torch.ones_like(noise[:1, :1]), 3, stride=1, padding=1, divisor_override=1)
    return sums / terms.sqrt()


def _sums(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Sums over cells, weighted by the parts of pixels in units of 1/h by 1/w: whole numbers, so exact.

    Products with two matrices: adaptive pooling has no deterministic gradient on GPUs, and its cells overlap.
    """
    rows, columns = (
        _parts(cells, pixels).to(maps) for cells, pixels in zip(size, maps.shape[-2:], strict=True)
    )
    return rows @ maps @ columns.T


def _parts(cells: int, pixels: int) -> Tensor:
    """[cells, pixels], how much of each pixel lies in each cell, in units of 1/cells."""
    cell, pixel = torch.arange(cells)[:, None] * pixels, torch.arange(pixels) * cells
    return (torch.minimum(cell + pixels, pixel + cells) - torch.maximum(cell, pixel)).clamp(min=0)
