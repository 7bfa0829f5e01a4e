"""RandAugment: Cubuk, Zoph, Shlens, Le 2020, https://arxiv.org/abs/1909.13719.

The operations and magnitudes are those of torchvision's ``RandAugment(num_ops=2, magnitude=9)``, to the bit;
here each sample has draws of its own.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Operation = Callable[[Tensor, int], Tensor]
"""From planes uint8 [n, C, H, W] and a sign to new ones."""


def rand_augment(
    rng: np.random.Generator, images: Tensor, masks: Tensor | None, num_ops: int = 2
) -> tuple[Tensor, Tensor | None]:
    """Operations drawn from 14, one after the other, for each of uint8 [b, C, H, W] and [b, H, W]."""
    moves, shades, rest = _moves(*images.shape[2:]), _shades(), _rest()
    operations = (*moves, *shades, *rest)
    num_signed = len(moves) + len(shades)
    images, masks = images.clone(), None if masks is None else masks.clone()
    for _ in range(num_ops):
        kinds = rng.integers(len(operations), size=len(images))
        signs = np.where(kinds < num_signed, rng.choice([-1, 1], size=len(images)), 1)
        # All samples that drew the same at once: a call costs as much for one small image as for ten.
        for kind, sign in sorted(set(zip(kinds.tolist(), signs.tolist(), strict=True))):
            which = torch.from_numpy(np.flatnonzero((kinds == kind) & (signs == sign))).to(images.device)
            images[which] = operations[kind](images[which], sign)
            if masks is not None and kind < len(moves):
                masks[which] = moves[kind](masks[which, None], sign)[:, 0]
    return images, masks


def _magnitude(largest: float) -> float:
    """Number 9 of 31 magnitudes from 0 on."""
    return float(torch.linspace(0.0, largest, 31)[9])


def _moves(height: int, width: int) -> Sequence[Operation]:
    """Shears, shifts, a rotation: to the nearest pixel; what comes in from outside is 0."""
    from torchvision.transforms.v2 import functional

    across, down = (int(_magnitude(150.0 / 331.0 * side)) for side in (width, height))
    tilt, angle = math.degrees(math.atan(_magnitude(0.3))), _magnitude(30.0)
    move = functools.partial(functional.affine, angle=0.0, scale=1.0)
    return (
        lambda x, sign: move(x, translate=[0, 0], shear=[sign * tilt, 0.0], center=[0, 0]),
        lambda x, sign: move(x, translate=[0, 0], shear=[0.0, sign * tilt], center=[0, 0]),
        lambda x, sign: move(x, translate=[sign * across, 0], shear=[0.0, 0.0]),
        lambda x, sign: move(x, translate=[0, sign * down], shear=[0.0, 0.0]),
        lambda x, sign: functional.rotate(x, sign * angle),
    )


def _shades() -> Sequence[Operation]:
    """More or less of something."""
    from torchvision.transforms.v2 import functional

    strength = _magnitude(0.9)
    return (
        lambda x, sign: functional.adjust_brightness(x, 1 + sign * strength),
        lambda x, sign: functional.adjust_saturation(x, 1 + sign * strength),
        lambda x, sign: functional.adjust_contrast(x, 1 + sign * strength),
        lambda x, sign: functional.adjust_sharpness(x, 1 + sign * strength),
    )


def _rest() -> Sequence[Operation]:
    """Changes of values that have no sign."""
    from torchvision.transforms.v2 import functional

    return (
        lambda x, _: x,
        lambda x, _: functional.posterize(x, bits=7),
        lambda x, _: functional.solarize(x, threshold=0.7 * 255),
        lambda x, _: functional.autocontrast(x),
        lambda x, _: functional.equalize(x),
    )
