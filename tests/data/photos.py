"""Images to augment, and federations that train on images kept as bytes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tiny
import torch
from torch import Tensor

from rayfl.data.augment import Augment, augmentation
from rayfl.data.config import AugmentKind
from rayfl.errors import UserError
from rayfl.host import Blueprint
from rayfl.training import Rows


def photos(count: int = 16, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Smooth random images: coarse noise, enlarged."""
    draw = torch.Generator().manual_seed(channels)
    coarse = torch.rand(count, channels, 4, 4, generator=draw)
    return (
        (torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic") * 255).clamp(0, 255).byte()
    )


def apply(
    kind: AugmentKind, images: Tensor, masks: Tensor | None = None, *ids: int
) -> tuple[Tensor, Tensor | None]:
    """What a kind of augmentation makes of images under the ids (seed, round, client, step)."""
    change = augmentation(kind, *(ids or (0, 1, 0, 0)))
    assert change is not None
    return change(images, masks)


@dataclass(frozen=True)
class Bytes:
    """Images 2x8x8 in memory as bytes; ``broken`` is a row that can't be read."""

    images: Tensor
    labels: Rows
    broken: int = -1

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, indices: Rows, dtype: torch.dtype, device: str, augment: Augment | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows, augmented, scaled to 0..1."""
        rows = np.asarray(indices)
        if self.broken in rows:
            raise UserError(f"image {self.broken}.jpg can't be read")
        images, labels = self.images[torch.from_numpy(rows)], torch.from_numpy(self.labels[rows])
        if augment is not None:
            images = augment(images, None)[0]
            labels = labels.repeat(len(images) // len(labels))
        return images.to(dtype) / 255, labels


def federation(method: str, broken: int = -1, **fields: Any) -> Blueprint:
    """A federation of GroupNorm models on such images; ``fields`` are those of the blueprint."""
    draw = torch.Generator().manual_seed(5)
    images = torch.randint(256, (sum(tiny.SIZES), 2, 8, 8), dtype=torch.uint8, generator=draw)
    labels = torch.randint(tiny.NUM_CLASSES, (len(images),), generator=draw).numpy()
    plan = tiny.blueprint(method, model="group", train=Bytes(images, labels, broken))  # type: ignore[arg-type]
    return replace(plan, **fields)
