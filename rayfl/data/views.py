"""Two views of each sample, for contrastive losses: Khosla et al. 2020, https://arxiv.org/abs/2004.11362.

Whole batches are changed at once, with factors per sample: torchvision's functions take one factor per call,
and call by call 64 small images cost more than a training step of a small model.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Floats = npt.NDArray[np.float64]


def two_views(rng: np.random.Generator, images: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """2b rows of uint8 [b, C, H, W] and [b, H, W]: one view of every sample, then another of every sample.

    A view is a crop of 0.5 to 1 of the area at a ratio of 3/4 to 4/3 and full size again, a flip half the
    time, colour jitter (brightness, contrast, saturation 0.4, hue 0.1, in random order) with probability 0.8
    and grey with 0.2. Images of one channel have no saturation, hue or grey.
    """
    count, channels, height, width = (2 * len(images), *images.shape[1:])
    theta = torch.from_numpy(_crops(rng, count, height, width)).float().to(images.device)
    grid = functional.affine_grid(theta, [count, channels, height, width], align_corners=False)

    def cropped(planes: Tensor, mode: str) -> Tensor:
        twice = planes.float().repeat(2, 1, 1, 1)
        return functional.grid_sample(twice, grid, mode, padding_mode="border", align_corners=False)

    views = _jittered(rng, cropped(images, "bilinear") / 255)
    if channels == 3:
        dull = torch.from_numpy(rng.random(count) < 0.2).to(images.device)
        views[dull] = grey(views[dull])
    views = (views * 255).round_().byte()
    return views, None if masks is None else cropped(masks[:, None], "nearest")[:, 0].byte()


def _crops(rng: np.random.Generator, count: int, height: int, width: int) -> Floats:
    """[count, 2, 3], where an output pixel comes from, sides being 2 and the centre 0.

    The first of ten draws that fits into the image, else the whole image.
    """
    areas = rng.uniform(0.5, 1.0, (count, 10))
    ratios = np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), (count, 10)))
    heights = np.sqrt(areas / ratios * (width / height))
    widths = np.sqrt(areas * ratios * (height / width))
    fitting = (heights <= 1) & (widths <= 1)
    first = (np.arange(count), fitting.argmax(1))
    whole = ~fitting.any(1)
    down, across = np.where(whole, 1.0, heights[first]), np.where(whole, 1.0, widths[first])
    theta = np.zeros((count, 2, 3))
    theta[:, 0, 0] = across * np.where(rng.random(count) < 0.5, 1, -1)
    theta[:, 0, 2] = (1 - across) * rng.uniform(-1, 1, count)
    theta[:, 1, 1] = down
    theta[:, 1, 2] = (1 - down) * rng.uniform(-1, 1, count)
    return theta


def _jittered(rng: np.random.Generator, images: Tensor) -> Tensor:
    """[n, C, H, W] in 0..1, changed in place."""
    count = len(images)
    strengths = np.array([0.4, 0.4, 0.4, 0.1])
    factors = np.array([1, 1, 1, 0]) + strengths * rng.uniform(-1, 1, (count, 4))
    order = rng.permuted(np.tile(np.arange(4), (count, 1)), axis=1)
    order[rng.random(count) >= 0.8] = -1
    for turn in range(4):
        for place, change in enumerate((brightness, contrast, saturation, hue)):
            chosen = np.flatnonzero(order[:, turn] == place)
            if not len(chosen) or (images.shape[1] == 1 and change in (saturation, hue)):
                continue
            which = torch.from_numpy(chosen).to(images.device)
            factor = torch.from_numpy(factors[chosen, place]).to(images)[:, None, None, None]
            images[which] = change(images[which], factor)
    return images


def grey(images: Tensor) -> Tensor:
    """Luma [n, 1, H, W] of red, green and blue (ITU-R BT.601); of one channel, that channel."""
    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor([0.2989, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Images [n, C, H, W] in 0..1, away from black by ``factor`` [n, 1, 1, 1]."""
    return (images * factor).clamp_(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Likewise away from an image's mean grey."""
    return torch.lerp(grey(images).mean((2, 3), keepdim=True), images, factor).clamp_(0, 1)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Likewise away from each pixel's grey."""
    return torch.lerp(grey(images), images, factor).clamp_(0, 1)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Hues turned by a share ``turn`` [n, 1, 1, 1] of the colour circle.

    By way of the hexagon of HSV (Smith 1978): a channel is the value less the chroma times its distance from
    its own third of the circle, and the hue is measured in sixths of it.
    """
    red, green, blue = images.split(1, 1)
    value, lowest = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - lowest
    safe = chroma.where(chroma > 0, 1)
    sixth = ((red - green) / safe + 4).where(value != green, (blue - red) / safe + 2)
    sixth = sixth.where(value != red, (green - blue) / safe)
    places = images.new_tensor([5, 3, 1])[:, None, None]
    k = (places + sixth + 6 * turn) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)
