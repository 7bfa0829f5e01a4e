"""What is learnt: what a local step minimises, and what is kept of a model's outputs to be scored.

``classification``: one class per image, softmax cross-entropy. ``segmentation``: one class per pixel, Dice
plus cross-entropy, both per image: a batch's loss is a mean (or sum) over its images, so that merged and
divided batches give the same gradients.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a model did on some rows: small, and the scores of parts join to the score of the whole."""

    loss: float
    """Sum of the loss over the rows."""

    def __len__(self) -> int:
        """How many rows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ClassScore(Score):
    """Of classification."""

    predictions: Tensor
    """[n] int32, the class with the largest logit, the first of equals."""
    in_top5: Tensor
    """[n] bool, whether the label is among the five classes with the largest logits."""
    confidences: Tensor
    """[n] float32, the probability given to the prediction."""

    def __len__(self) -> int:
        return len(self.predictions)


@dataclass(frozen=True, kw_only=True)
class MaskScore(Score):
    """Of segmentation: pixels by image and class. A class 0 next to others is background and left out."""

    overlaps: Tensor
    """[n, F] int64, pixels of the class that were found."""
    predicted: Tensor
    """[n, F] int64, pixels that were called the class."""
    actual: Tensor
    """[n, F] int64, pixels of the class."""

    def __len__(self) -> int:
        return len(self.actual)


AnyScore = TypeVar("AnyScore", bound=Score)


def join(scores: Sequence[AnyScore]) -> AnyScore:
    """The score of all rows, in the order given; the loss is the exactly rounded sum."""
    first = scores[0]
    columns = [field.name for field in fields(first) if field.name != "loss"]
    joined = {name: torch.cat([getattr(score, name) for score in scores]) for name in columns}
    return type(first)(loss=math.fsum(score.loss for score in scores), **joined)


class Task(Protocol):
    """What a dataset asks of a model."""

    headline: str
    """``global/test_<headline>`` is the metric, from 0 to 1, that progress, tables and targets go by."""

    def output_shape(self, num_classes: int, input_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """What a model must make of an image (C, H, W)."""

    def loss(self, logits: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
        """The scalar that a step minimises, with graph."""

    def score(self, logits: Tensor, labels: Tensor) -> Score:
        """What is kept of a batch's outputs."""

    def nothing(self, num_classes: int) -> Score:
        """The score of no rows."""


class Classification:
    """Logits [b, K], labels [b] int64."""

    headline = "accuracy"

    def output_shape(self, num_classes: int, input_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """(K)"""
        return (num_classes,)

    def loss(self, logits: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
        """Softmax cross-entropy."""
        return F.cross_entropy(_precise(logits), labels, reduction=reduction)

    def score(self, logits: Tensor, labels: Tensor) -> ClassScore:
        """Predictions with their confidence, in float64 inside."""
        logits = logits.double()
        # Stable, so that among equals both the first and the first five are those of the lowest numbers.
        ranked = logits.argsort(dim=1, descending=True, stable=True)[:, :5]
        return ClassScore(
            loss=float(self.loss(logits, labels, "sum")),
            predictions=logits.argmax(1).int().cpu(),
            in_top5=(ranked == labels[:, None]).any(1).cpu(),
            confidences=logits.softmax(1).amax(1).float().cpu(),
        )

    def nothing(self, num_classes: int) -> ClassScore:
        """No rows."""
        return self.score(torch.zeros(0, num_classes), torch.zeros(0, dtype=torch.int64))


class Segmentation:
    """Logits [b, K, H, W], labels [b, H, W] uint8: masks of 0 and 1 for K=1, else of 0..K-1."""

    headline = "dice"

    def output_shape(self, num_classes: int, input_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """(K, H, W)"""
        return (num_classes, *input_shape[1:])

    def loss(self, logits: Tensor, labels: Tensor, reduction: Reduction, focus: float = 0.0) -> Tensor:
        """Per image: the mean cross-entropy of its pixels, plus one minus the mean of its classes' soft Dice.

        Soft Dice is (2 |P M| + 1) / (|P| + |M| + 1) with probabilities P and mask M: smoothed by one pixel,
        so that an image without the class asks for none (Milletari et al. 2016,
        https://arxiv.org/abs/1606.04797, without the squares of its denominator). With ``focus`` a pixel's
        entropy counts (1 - p)^focus, p being the probability of what is true: the focal loss (Lin et al.
        2017, https://arxiv.org/abs/1708.02002, without weights of classes).
        """
        logits = _precise(logits)
        masks = _by_class(labels, logits.shape[1]).to(logits.dtype)
        if logits.shape[1] == 1:
            probabilities = logits.sigmoid()
            entropy = F.binary_cross_entropy_with_logits(logits, masks, reduction="none")
        else:
            probabilities = logits.softmax(1)
            # Written out: on GPUs the two-dimensional form has no deterministic version.
            entropy = -(masks * logits.log_softmax(1)).sum(1, keepdim=True)
        if focus:
            entropy = (1 - (-entropy).exp()) ** focus * entropy
        overlap = (probabilities * masks).sum((2, 3))
        dice = (2 * overlap + 1) / ((probabilities + masks).sum((2, 3)) + 1)
        each = entropy.mean((1, 2, 3)) + 1 - dice.mean(1)
        return each.mean() if reduction == "mean" else each.sum()

    def score(self, logits: Tensor, labels: Tensor) -> MaskScore:
        """Pixel counts at a probability of more than 0.5, or of the most probable class."""
        logits, num_classes = logits.double(), logits.shape[1]
        found = logits > 0 if num_classes == 1 else _by_class(logits.argmax(1), num_classes)[:, 1:]
        truth = _by_class(labels, num_classes)[:, -found.shape[1] :]
        return MaskScore(
            loss=float(self.loss(logits, labels, "sum")),
            overlaps=(found & truth).sum((2, 3)).cpu(),
            predicted=found.sum((2, 3)).cpu(),
            actual=truth.sum((2, 3)).cpu(),
        )

    def nothing(self, num_classes: int) -> MaskScore:
        """No rows."""
        return self.score(torch.zeros(0, num_classes, 1, 1), torch.zeros(0, 1, 1, dtype=torch.uint8))


def _precise(logits: Tensor) -> Tensor:
    """Logits as a loss needs them: bfloat16 has too few digits for an exponential."""
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def _by_class(labels: Tensor, num_classes: int) -> Tensor:
    """[b, H, W] classes as [b, K, H, W] bool; with one class, 1 is that class."""
    if num_classes == 1:
        return labels[:, None] == 1
    return labels[:, None] == torch.arange(num_classes, device=labels.device)[:, None, None]


TASKS: Mapping[str, Task] = {"classification": Classification(), "segmentation": Segmentation()}


def headline(metrics: Mapping[str, float], prefix: str = "global/test_") -> tuple[str, float] | None:
    """Name and value of the metric that a round (with another prefix: a run) is quoted by, if any."""
    for task in TASKS.values():
        if (key := prefix + task.headline) in metrics:
            return task.headline, metrics[key]
    return None
