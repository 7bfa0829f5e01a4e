"""Where lesions lie and how they are shaped, in six numbers: masks in, masks of ellipses out.

A lesion is taken for the ellipse with its own area moments (Teague, "Image analysis via the general theory of
moments", J. Opt. Soc. Am. 70, 1980). Both sides of an image are 1, so that numbers taken at one resolution
serve at any other.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfl import moments
from rayfl.messages import sent_as
from rayfl.moments import Moments

Size = tuple[int, int]
"""Height and width in pixels."""

LONGEST = math.log(2) / 2
"""A semi-axis of sqrt(2), as of two opposite corners: no mask has a longer one."""


@dataclass(frozen=True)
class Layouts:
    """The ellipses of a place's lesions as a Gaussian of independent numbers; of one lesion, that ellipse."""

    lesions: int = sent_as("counts")
    """Images with a lesion."""
    empty: int = sent_as("counts")
    """Images without."""
    mean: Tensor = sent_as("moments")
    """[6] float32, the numbers of :func:`measure`; [0] without any lesion."""
    variance: Tensor = sent_as("moments")
    """[6] float32, the population's; [0] likewise."""


def take(batches: Iterable[Tensor]) -> Layouts:
    """The layouts of masks [b, H, W], over all batches."""
    found = moments.take(measure(masks) for masks in batches)
    return _layouts(found.get(1), found[0].count if 0 in found else 0)


def join(parts: Iterable[Layouts]) -> Layouts:
    """The layouts of the union of the parts' images."""
    parts = list(parts)
    known = [
        Moments(part.lesions, part.mean.double(), part.variance.double()) for part in parts if part.lesions
    ]
    return _layouts(moments.join(known) if known else None, sum(part.empty for part in parts))


def draw(layouts: Layouts, count: int, size: Size, generator: torch.Generator) -> Tensor:
    """Masks [count, *size] uint8: each empty with the share that was seen, else an ellipse of the Gaussian.

    The generator is the CPU's, the masks are where the moments are.
    """
    device = layouts.mean.device
    masks = torch.zeros(count, *size, dtype=torch.uint8, device=device)
    if not layouts.lesions:
        return masks
    uniform = torch.rand(count, generator=generator, dtype=torch.float64).to(device)
    normal = torch.randn(count, 6, generator=generator, dtype=torch.float64).to(device)
    present = uniform < layouts.lesions / (layouts.lesions + layouts.empty)
    numbers = layouts.mean.double() + layouts.variance.double().sqrt() * normal
    masks[present] = ellipses(numbers[present], size)
    return masks


def measure(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Six numbers per mask, [n, 6] float64, and whether there is a lesion, [n] int64, of masks [n, H, W].

    Of the ellipse: x and y of its centre; logarithms of its longer and shorter semi-axis; cosine and sine of
    twice the angle from x to the longer one, in which opposite directions are the same, both 0 for a circle.
    Without a lesion (pixels of 1) all are 0.
    """
    lesion = (masks == 1).double()
    x, y = (_centres(side, masks.device) for side in (masks.shape[2], masks.shape[1]))
    columns, rows, area = lesion.sum(1), lesion.sum(2), lesion.sum((1, 2)).clamp(min=1)
    centre_x, centre_y = columns @ x / area, rows @ y / area
    across, down = x - centre_x[:, None], y - centre_y[:, None]
    # A pixel is a square, not a point: the variance inside it keeps a line's or a lone pixel's axes above 0.
    xx = (columns * across.square()).sum(1) / area + 1 / (12 * len(x) ** 2)
    yy = (rows * down.square()).sum(1) / area + 1 / (12 * len(y) ** 2)
    xy = ((lesion @ across[:, :, None])[:, :, 0] * down).sum(1) / area
    stretch = torch.hypot(xx - yy, 2 * xy)
    # An ellipse's semi-axis is two standard deviations of its area along it.
    longer, shorter = ((4 * (xx + yy + sign * stretch) / 2).log() / 2 for sign in (1, -1))
    cosine, sine = (
        torch.where(stretch > 1e-9 * (xx + yy), part / stretch, 0.0) for part in (xx - yy, 2 * xy)
    )
    numbers = torch.stack([centre_x, centre_y, longer, shorter, cosine, sine], 1)
    present = lesion.flatten(1).any(1)
    return torch.where(present[:, None], numbers, 0.0), present.long()


def ellipses(numbers: Tensor, size: Size) -> Tensor:
    """Masks [n, *size] uint8 of the ellipses that numbers [n, 6] stand for: pixels whose centre is inside.

    What no mask can have is clipped, a centre to the image and a semi-axis to sqrt(2), and the pixel that
    holds the centre is always in the lesion.
    """
    height, width = size
    x, y, longer, shorter, cosine, sine = numbers.double().T[:, :, None, None]
    x, y = x.clamp(0, 1), y.clamp(0, 1)
    angle = torch.atan2(sine, cosine) / 2
    across = _centres(width, numbers.device) - x
    down = _centres(height, numbers.device)[:, None] - y
    along = (across * angle.cos() + down * angle.sin()) / longer.clamp(max=LONGEST).exp()
    aside = (down * angle.cos() - across * angle.sin()) / shorter.clamp(max=LONGEST).exp()
    masks: Tensor = (along.square() + aside.square() <= 1).to(torch.uint8)
    row, column = (
        (centre.flatten() * side).long().clamp(max=side - 1) for centre, side in ((y, height), (x, width))
    )
    masks[torch.arange(len(masks), device=masks.device), row, column] = 1
    return masks


def _centres(side: int, device: torch.device) -> Tensor:
    """[side] of pixels."""
    return (torch.arange(side, dtype=torch.float64, device=device) + 0.5) / side


def _layouts(lesions: Moments | None, empty: int) -> Layouts:
    if lesions is None:
        return Layouts(0, empty, torch.empty(0), torch.empty(0))
    return Layouts(lesions.count, empty, lesions.mean.float(), lesions.variance.float())
