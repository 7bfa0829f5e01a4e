"""Metrics of predicted classes, most of them ratios of the confusion matrix."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rayfl.data import Dataset
from rayfl.errors import UserError
from rayfl.suggest import unknown
from rayfl.tasks import ClassScore

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_CURVES = 20
"""Recall is logged class by class up to this many classes; the confusion matrix has it for any number."""


def of_classes(
    score: ClassScore, labels: Ints, class_names: Sequence[str], dangerous: Sequence[int]
) -> dict[str, float]:
    """All metrics but accuracy and loss, of predictions for rows with these labels [n]."""
    num_classes = len(class_names)
    confusion = confusion_matrix(labels, score.predictions.numpy(), num_classes)
    hits = score.predictions.numpy() == labels
    found = {
        "macro_f1": macro_f1(confusion),
        "balanced_accuracy": balanced_accuracy(confusion),
        "ece": expected_calibration_error(score.confidences.double().numpy(), hits),
        **bmr(confusion, dangerous),
    }
    if num_classes > 5:
        found["top5_accuracy"] = float(score.in_top5.numpy().mean())
    if num_classes <= MOST_CURVES:
        each = zip(class_names, recalls(confusion), strict=True)
        found.update({f"recall/{name}": float(recall) for name, recall in each if np.isfinite(recall)})
    return found


def confusion_matrix(
    labels: npt.NDArray[np.integer], predictions: npt.NDArray[np.integer], num_classes: int
) -> Ints:
    """[K, K] counts; rows are true classes."""
    flat = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def macro_f1(confusion: Ints) -> float:
    """The mean over classes that occur or are predicted of 2 TP / (2 TP + FP + FN)."""
    hits = np.diag(confusion)
    denominator = confusion.sum(0) + confusion.sum(1)
    seen = denominator > 0
    return float(np.mean(2 * hits[seen] / denominator[seen])) if seen.any() else 0.0


def recalls(confusion: Ints) -> Floats:
    """[K] share of each class that was found; NaN for a class that does not occur."""
    support = confusion.sum(1)
    return np.where(support > 0, np.diag(confusion) / np.maximum(support, 1), np.nan)


def balanced_accuracy(confusion: Ints) -> float:
    """The mean recall of the classes that occur."""
    each = recalls(confusion)
    occur = np.isfinite(each)
    return float(each[occur].mean()) if occur.any() else 0.0


def expected_calibration_error(confidences: Floats, hits: npt.NDArray[np.bool_], num_bins: int = 15) -> float:
    """The mean over predictions of |accuracy - confidence| of their bin of confidence.

    Bins are (0, 1/M], ..., (1 - 1/M, 1]: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural
    Networks", ICML 2017, https://arxiv.org/abs/1706.04599, eq. 3. NaN where a confidence is.
    """
    bins = np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], confidences)
    # n_b |acc_b - conf_b| is the magnitude of the bin's sum of hit minus confidence.
    gaps = np.bincount(bins, weights=hits - confidences, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(hits)) if len(hits) else 0.0


def dangerous_classes(dataset: Dataset, benign: Sequence[str] = ()) -> tuple[int, ...]:
    """The dataset's classes that are dangerous to overlook, less those named. Raises UserError for others."""
    found = {dataset.class_names[i]: i for i in dataset.non_benign}
    for name in benign:
        if not found:
            raise UserError(
                f"benign={name} makes no difference: no class of {dataset.name} counts as dangerous"
            )
        if name not in found:
            raise unknown("dangerous class", name, found)
    return tuple(i for name, i in found.items() if name not in benign)


def bmr(confusion: Ints, dangerous: Sequence[int]) -> Mapping[str, float]:
    """How often dangerous classes M and benign ones (the rest) are taken for each other; lower is better.

    ``bmr``: the share of M called benign. ``bmr_all``: the share of all rows that are in M and called benign.
    ``bmr_err``: the share of errors whose true class is in M. ``bmr_overcall``: the share of benign rows
    called M. One whose denominator is empty is left out; without dangerous classes all are.
    """
    if not dangerous:
        return {}
    bad = np.isin(np.arange(len(confusion)), dangerous)
    errors = confusion - np.diag(np.diag(confusion))
    missed = confusion[bad][:, ~bad].sum()
    ratios = {
        "bmr": (missed, confusion[bad].sum()),
        "bmr_all": (missed, confusion.sum()),
        "bmr_err": (errors[bad].sum(), errors.sum()),
        "bmr_overcall": (confusion[~bad][:, bad].sum(), confusion[~bad].sum()),
    }
    return {name: float(part / of) for name, (part, of) in ratios.items() if of}
