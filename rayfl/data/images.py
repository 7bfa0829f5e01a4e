"""Pixels from encoded images, and pixels at another size."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Encoded = bytes | memoryview


class Unreadable(Exception):
    """An image that can't be used; the message says why and names no file."""


def probe(encoded: Encoded) -> tuple[int, int]:
    """Width and height of an image after reading it to its end; raises Unreadable."""
    with _open(encoded) as image:
        size = image.size
        # JPEG at an eighth of its size: every byte is still read, the larger part of the arithmetic spared.
        image.draft("RGB", (1, 1))
        _load(image)
    return size


def decode_exact(encoded: Encoded, shape: tuple[int, int, int]) -> Pixels:
    """An image as [C, H, W], which it must have; raises Unreadable."""
    channels, height, width = shape
    with _open(encoded) as image:
        if image.size != (width, height):
            raise Unreadable(f"is {image.size[0]}x{image.size[1]}, not {width}x{height}")
        _load(image)
        return _pixels(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))


def decode_mask(encoded: Encoded) -> Pixels:
    """A mask as [H, W], 1 where it is above half the range; raises Unreadable."""
    with _open(encoded) as image:
        _load(image)
        values = np.asarray(image.convert("L"))
    if 0 < values.max() < 128:
        raise Unreadable(f"is a mask of values up to {values.max()}: 255, or at least 128, marks the object")
    return (values > 127).astype(np.uint8)


def decode_batch(encoded: Sequence[Encoded], size: tuple[int, int]) -> Tensor:
    """Colour images squeezed to ``size`` (H, W): [b, 3, H, W] uint8.

    Large JPEGs are decoded at the smallest fraction of their size that is at least twice the one wanted.
    """
    height, width = size
    pixels = torch.empty((len(encoded), 3, height, width), dtype=torch.uint8)
    for row, one in enumerate(encoded):
        with _open(one) as image:
            image.draft("RGB", (2 * width, 2 * height))
            _load(image)
            whole = torch.from_numpy(_pixels(image.convert("RGB")))
        # By torch, at a quarter of Pillow's time: the same filter, in integers as well.
        pixels[row] = resize(whole[None], size)[0]
    return pixels


def decode_masks(encoded: Sequence[Encoded], size: tuple[int, int]) -> Tensor:
    """Masks squeezed to ``size`` (H, W): [b, H, W] uint8, 0 or 1."""
    pixels = torch.empty((len(encoded), *size), dtype=torch.uint8)
    for row, one in enumerate(encoded):
        pixels[row] = resize_masks(torch.from_numpy(decode_mask(one))[None], size)[0]
    return pixels


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images [b, C, H, W] uint8 as [b, C, *size]: bilinear, antialiased."""
    if images.shape[-2:] == size:
        return images
    return functional.interpolate(images, size, mode="bilinear", antialias=True)


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks [b, H, W] uint8 as [b, *size]: nearest neighbour, so classes stay classes."""
    if masks.shape[-2:] == size:
        return masks
    return functional.interpolate(masks[:, None], size, mode="nearest-exact")[:, 0]


def _open(encoded: Encoded) -> "Image":
    from PIL import Image

    try:
        return Image.open(io.BytesIO(encoded))
    except Exception as e:
        raise Unreadable(_reason(e)) from e


def _load(image: "Image") -> None:
    # Pillow passes on whatever its many parsers stumble over: OSError, SyntaxError, struct.error, ...
    try:
        image.load()
    except Exception as e:
        raise Unreadable(_reason(e)) from e


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "is no image that Pillow knows"
    return f"can't be decoded ({' '.join(str(error).split()) or type(error).__name__})"


def _pixels(image: "Image") -> Pixels:
    """[C, H, W]"""
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
