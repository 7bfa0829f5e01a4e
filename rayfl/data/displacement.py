"""Images moved within their frame, each once and for all: whose content has no fixed place."""

import numpy as np
import torch
from torch import Tensor

from rayfl.data.sampling import Ints
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator


def check(most: int, shape: tuple[int, int, int]) -> None:
    """Refuse what would move images of ``shape`` (C, H, W) out of their frame."""
    side = min(shape[1:])
    if most >= side:
        raise UserError(
            f"data.displacement={most} moves images of {shape[1]}x{shape[2]} out of their frame: use at most "
            f"{side - 1}"
        )


def offsets(split: str, count: int, most: int) -> Ints:
    """How far each of ``count`` images of a split is moved up and to the left, int64 [count, 2], by up to
    ``most`` pixels; a pure function of its arguments, of no seed."""
    rng = numpy_generator(0, f"displacement {split}")
    return rng.integers(-most, most + 1, size=(count, 2), dtype=np.int64)


def displace(images: Tensor, masks: Tensor | None, moves: Ints, most: int) -> tuple[Tensor, Tensor | None]:
    """Images uint8 [b, C, H, W], and their masks [b, H, W], moved by ``moves`` [b, 2] of up to ``most``."""
    height, width = images.shape[2:]
    rows = most + moves[:, :1] + np.arange(height)
    columns = most + moves[:, 1:] + np.arange(width)
    return move(images, masks, rows, columns, (most, most))


def move(
    images: Tensor, masks: Tensor | None, rows: Ints, columns: Ints, margins: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """Of images uint8 [b, C, H, W], and masks [b, H, W], the pixels in ``rows`` [b, H] and ``columns`` [b, W]
    after zeros were put around: ``margins`` above as below, and left as right."""
    above, left = margins
    places = rows[:, :, None] * (images.shape[3] + 2 * left) + columns[:, None, :]
    index = torch.from_numpy(places.reshape(len(places), 1, -1)).to(images.device)

    def moved(planes: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(planes, (left, left, above, above)).flatten(2)
        return padded.gather(2, index.expand(-1, planes.shape[1], -1)).view_as(planes)

    return moved(images), None if masks is None else moved(masks[:, None])[:, 0]
