"""Class-wise mean and variance of features: taken in one pass, and joined without the features.

Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 37 (1983):
the sum of squares about the mean is carried along, never E[x^2] - E[x]^2.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Of the features of one class at one place."""

    count: int
    """Samples behind them, at least 1."""
    mean: Tensor
    """[*S]."""
    variance: Tensor
    """[*S], the population's: over n, 0 for one sample."""


def take(batches: Iterable[tuple[Tensor, Tensor]]) -> dict[int, Moments]:
    """Moments by class of features [b, *S] with labels [b], over all batches: float32 at least, no graph.

    Classes come in ascending order; one that no sample has is absent.
    """
    found: dict[int, Moments] = {}
    for features, labels in batches:
        features = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        for label in labels.unique().tolist():
            some = features[labels == label]
            mean = some.mean(0)
            new = Moments(len(some), mean, (some - mean).square().mean(0))
            found[label] = join([found[label], new]) if label in found else new
    return dict(sorted(found.items()))


def join(parts: Iterable[Moments]) -> Moments:
    """The moments of the union of what ``parts`` are of: the law of total variance."""
    first, *others = parts
    count, mean, squares = first.count, first.mean, first.variance * first.count
    for other in others:
        total = count + other.count
        apart = other.mean - mean
        mean = mean + apart * (other.count / total)
        squares = squares + other.variance * other.count + apart.square() * (count * other.count / total)
        count = total
    return Moments(count, mean, squares / count)
