"""Random changes to training images, each sample by draws of its own.

The draws are a function of (seed, round, client, step) and touch no global generator, so they are the same in
every layout, in whatever thread a batch is made. Masks are moved along with their images. torchvision's own
random transforms fit neither: they draw from torch's global generator, and once for a whole batch.
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from rayfl.data.config import AugmentKind
from rayfl.data.displacement import move
from rayfl.data.randaugment import rand_augment
from rayfl.data.views import two_views
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator

Augment = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""From images uint8 [b, C, H, W] and, for segmentation, masks uint8 [b, H, W] to new ones, of b rows or, with
two views, 2b; a pure function."""


def augmentation(kind: AugmentKind, seed: int, t: int, client: int, step: int) -> Augment | None:
    """What happens to a client's batch of step ``step`` of round ``t``; None where nothing does."""
    if kind == "none":
        return None
    change = {"crop_flip": crop_flip, "shift": shift, "supcon": two_views, "randaugment": rand_augment}[kind]
    return lambda images, masks: change(numpy_generator(seed, "augment", t, client, step), images, masks)


def check(kind: AugmentKind, shape: tuple[int, int, int]) -> None:
    """Refuse what images of ``shape`` (C, H, W) can't have."""
    if kind in ("supcon", "randaugment") and shape[0] not in (1, 3):
        raise UserError(
            f"data.augment={kind} changes colours and needs 1 or 3 channels, got {shape[0]}: use crop_flip"
        )


def crop_flip(rng: np.random.Generator, images: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Pad by an eighth of each side (4 pixels of 32) with zeros, crop to the old size, flip half of them.

    He, Zhang, Ren, Sun 2016, https://arxiv.org/abs/1512.03385, section 4.2.
    """
    return _moved(rng, images, masks, upright=0.5)


def shift(rng: np.random.Generator, images: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same without flips, for what has a left and a right: digits, letters."""
    return _moved(rng, images, masks, upright=1.0)


def _moved(
    rng: np.random.Generator, images: Tensor, masks: Tensor | None, upright: float
) -> tuple[Tensor, Tensor | None]:
    count, _, height, width = images.shape
    above, left = round(height / 8), round(width / 8)
    rows = rng.integers(2 * above + 1, size=(count, 1)) + np.arange(height)
    columns = np.where(rng.random((count, 1)) < upright, np.arange(width), np.arange(width)[::-1])
    columns = columns + rng.integers(2 * left + 1, size=(count, 1))
    return move(images, masks, rows, columns, (above, left))
