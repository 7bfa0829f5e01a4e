"""The constants that normalise a dataset."""

from collections.abc import Iterable, Iterator

import numpy as np

from rayfl.data.columns import Columns
from rayfl.data.dataset import PHOTOGRAPH_SIZE
from rayfl.data.images import Pixels, decode_batch

MOST_PHOTOGRAPHS = 2000
"""Of large images, so many are decoded for their moments, evenly spaced."""


def batches(columns: Columns) -> Iterator[Pixels]:
    """The training images as they will be seen: small ones as stored, photographs at their usual size."""
    if not columns.is_encoded("image"):
        images = columns.tensors("image")
        yield from (images[start : start + 4096] for start in range(0, len(images), 4096))
        return
    photographs = columns.encoded("image")
    for row in sample(len(photographs)):
        yield decode_batch([photographs[row]], (PHOTOGRAPH_SIZE, PHOTOGRAPH_SIZE)).numpy()


def sample(count: int) -> list[int]:
    """The photographs that are looked at."""
    chosen = np.linspace(0, count - 1, min(count, MOST_PHOTOGRAPHS)).round().astype(np.int64)
    return [int(row) for row in chosen]


def moments(images: Iterable[Pixels]) -> tuple[list[float], list[float]]:
    """Mean and deviation per channel of [n, C, H, W] scaled to 0..1, from exact counts of byte values."""
    counts = sum(np.stack([np.bincount(c.ravel(), minlength=256) for c in b.swapaxes(0, 1)]) for b in images)
    values = np.arange(256) / 255
    means, deviations = [], []
    for weights in np.asarray(counts):
        mean = float((weights * values).sum() / weights.sum())
        variance = float((weights * (values - mean) ** 2).sum() / weights.sum())
        means.append(mean)
        # A channel of one value can't be scaled; it is only centred.
        deviations.append(variance**0.5 if np.count_nonzero(weights) > 1 else 1.0)
    return means, deviations
