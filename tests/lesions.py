"""A federation of four clients under two edges that learn where bright ellipses lie, small and oblong.

Images are 16x24; the client's maps are [4, 8, 12], the edge's [6, 4, 6].
"""

import dataclasses
import functools
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import tiny
import torch
from torch import Tensor, nn

from rayfl.algorithms.sfp import layouts
from rayfl.blueprint import extend
from rayfl.host import Blueprint
from rayfl.training import Rows

IMAGE = (16, 24)
SIZES = (7, 3, 10, 5)
EDGES = (0, 0, 1, 1)
SMALL: dict[str, Any] = {
    "lr": 0.01, "syn_per_class": 6, "local_epochs": 1, "edge_epochs": 1, "cloud_epochs": 1,
    "weight_decay": 0.0, "cut_layers": (1, 2),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Lesions:
    """A dataset split in memory."""

    inputs: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.masks)

    def batch(
        self, indices: Rows, dtype: torch.dtype, device: str, augment: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Some rows."""
        rows = torch.from_numpy(np.asarray(indices))
        return self.inputs[rows].to(dtype), self.masks[rows]


def masks(count: int, seed: int) -> Tensor:
    """[count, 16, 24] of ellipses; every fourth image has none."""
    random = torch.rand(5, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x, y, longer, ratio, turn = random
    axes = (0.15 + 0.2 * longer).log(), ((0.15 + 0.2 * longer) * (0.6 + 0.4 * ratio)).log()
    angle = 2 * math.pi * turn
    numbers = torch.stack([0.3 + 0.4 * x, 0.3 + 0.4 * y, *axes, angle.cos(), angle.sin()], 1)
    found = layouts.ellipses(numbers, IMAGE)
    found[3::4] = 0
    return found


def lesions(count: int, seed: int) -> Lesions:
    """Noise of two channels, the first one brighter in the lesion."""
    made = masks(count, seed)
    noise = torch.randn(count, 2, *IMAGE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bright = torch.stack([made, torch.zeros_like(made)], 1)
    return Lesions(0.5 * noise + bright, made)


def build(num_classes: int = 1) -> nn.Sequential:
    """Two convolutions that halve the sides, and a head that is as large as the image."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        first = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GroupNorm(2, 6), nn.ReLU())
        third = nn.Sequential(nn.Conv2d(6, 16 * num_classes, 1), nn.PixelShuffle(4))
        return nn.Sequential(OrderedDict(first=first, second=second, third=third))


def plan(method: str = "hsfp", num_classes: int = 1, **config: Any) -> Blueprint:
    """Clients with ``SIZES`` images each."""
    of_method = SMALL if method == "hsfp" else {"lr": 0.01}
    made = tiny.blueprint(method, SIZES, edges=EDGES, **{**of_method, **config})
    return dataclasses.replace(
        made,
        facts=dataclasses.replace(made.facts, task="segmentation", num_classes=num_classes, batch_norm=False),
        model=functools.partial(
            extend,
            made.algorithm,
            made.config,
            (2, *IMAGE),
            made.facts.seed,
            functools.partial(build, num_classes),
        ),
        train=lesions(sum(SIZES), 1),
        test=lesions(12, 2),
    )
