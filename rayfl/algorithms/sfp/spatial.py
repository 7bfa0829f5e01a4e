"""Another view of feature maps, for the contrast of an edge."""

import torch
from torch import Tensor
from torch.nn import functional


def view(maps: Tensor, generator: torch.Generator, flips: bool) -> Tensor:
    """Of maps [b, C, H, W]: each cropped to 0.8 to 1 of its area and widened again, half of them blurred by a
    3x3 box and, with ``flips``, half of them mirrored. Vectors have no other view."""
    if maps.dim() != 4:
        return maps
    count = len(maps)
    drawn = torch.rand(5, count, generator=generator, dtype=torch.float64).to(maps)
    side = (0.8 + 0.2 * drawn[0]).sqrt()
    theta = torch.zeros(count, 2, 3, dtype=maps.dtype, device=maps.device)
    theta[:, 0, 0], theta[:, 1, 1] = side, side
    theta[:, 0, 2], theta[:, 1, 2] = (1 - side) * (2 * drawn[1] - 1), (1 - side) * (2 * drawn[2] - 1)
    if flips:
        theta[:, 0, 0] = torch.where(drawn[3] < 0.5, -side, side)
    grid = functional.affine_grid(theta, list(maps.shape), align_corners=False)
    seen = functional.grid_sample(maps, grid, padding_mode="border", align_corners=False)
    blurred = functional.avg_pool2d(seen, 3, stride=1, padding=1, count_include_pad=False)
    return torch.where((drawn[4] < 0.5)[:, None, None, None], blurred, seen)
