"""Metrics of predicted masks, from the pixels counted in each image."""

import numpy as np
import numpy.typing as npt

from rayfl.tasks import MaskScore

Floats = npt.NDArray[np.float64]


def of_masks(score: MaskScore) -> dict[str, float]:
    """All metrics but the mean Dice and the loss: mean IoU, and both with the pixels of all images pooled."""
    pooled = [part.sum((0, 1)).item() for part in (score.overlaps, score.predicted, score.actual)]
    overlap, predicted, actual = pooled
    total = predicted + actual
    return {
        "iou": float(iou_by_image(score).mean()),
        "micro_dice": 2 * overlap / total if total else 1.0,
        "micro_iou": overlap / (total - overlap) if total else 1.0,
    }


def dice_by_image(score: MaskScore) -> Floats:
    """[n] Dice 2 |A B| / (|A| + |B|): the mean over the classes an image has or is said to have.

    1 for an image that rightly has none.
    """
    return _by_image(2 * score.overlaps.numpy(), (score.predicted + score.actual).numpy())


def iou_by_image(score: MaskScore) -> Floats:
    """[n] intersection over union, likewise."""
    union = score.predicted + score.actual - score.overlaps
    return _by_image(score.overlaps.numpy(), union.numpy())


def _by_image(part: npt.NDArray[np.int64], of: npt.NDArray[np.int64]) -> Floats:
    seen = of > 0
    ratios = np.where(seen, part / np.maximum(of, 1), 0.0).sum(1)
    count = seen.sum(1)
    return np.where(count > 0, ratios / np.maximum(count, 1), 1.0)
