"""What stands for the features of a class: a Gaussian, fitted where the data are and drawn from above."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rayfl import moments
from rayfl.algorithms.sfp import covariances
from rayfl.moments import Moments

Covariance = Literal["diag", "mu_only", "low_rank", "full"]
Pooling = Literal["exact", "paper_eq5", "mixture"]
SAMPLES_PER_FACTOR = 4
"""k >= n - 1 factors and the mean would span the samples themselves."""
SPREAD_OF_POINTS = 1e-4
"""The variance drawn with where none is sent."""


@dataclass(frozen=True)
class Gaussian:
    """Of the features of one class at one place: N(mean, diag(variance) + sum_k factor_k factor_k^T), or
    N(mean, whole covariance)."""

    count: int
    """Real samples behind it."""
    mean: Tensor
    """[*S]."""
    variance: Tensor | None
    """[*S], what the factors leave of it; None where it is not sent."""
    factors: Tensor | None = None
    """[k, *S]; None where features count as independent of each other."""
    triangle: Tensor | None = None
    """[D (D + 1) / 2] of D features: the lower triangle of the whole covariance, which takes the place of
    variance and factors."""


def fit(batches: Iterable[tuple[Tensor, Tensor]], covariance: Covariance, rank: int) -> dict[int, Gaussian]:
    """Gaussians by class, ascending, of features [b, *S] with labels [b].

    ``diag`` and ``mu_only`` take one pass and no memory. The others hold the features: ``low_rank`` for the
    ``rank`` main directions of each class, at most a quarter as many as the class has samples.
    """
    if covariance in ("low_rank", "full"):
        features, labels = map(torch.cat, zip(*batches, strict=True))
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        one = functools.partial(_low_rank, rank=rank) if covariance == "low_rank" else _full
        return {label: one(features[labels == label]) for label in labels.unique().tolist()}
    return {
        label: Gaussian(found.count, found.mean, None if covariance == "mu_only" else found.variance)
        for label, found in moments.take(batches).items()
    }


def _low_rank(features: Tensor, rank: int) -> Gaussian:
    """Principal directions by the eigenvectors of the [n, n] matrix of inner products, in float64."""
    count, mean = len(features), features.mean(0)
    centred = (features - mean).flatten(1).double()
    kept = min(rank, count // SAMPLES_PER_FACTOR)
    _, vectors = torch.linalg.eigh(centred @ centred.T)
    factors = vectors[:, count - kept :].T @ centred / math.sqrt(count)
    rest = (centred.square().mean(0) - factors.square().sum(0)).clamp_min(0)
    return Gaussian(count, mean, rest.to(mean).view_as(mean), factors.to(mean).view(kept, *mean.shape))


def _full(features: Tensor) -> Gaussian:
    return Gaussian(len(features), features.mean(0), None, triangle=covariances.triangle(features))


def pool(parts: Sequence[Gaussian], how: Pooling) -> list[Gaussian]:
    """What is drawn from for a class that several places have.

    ``exact``: the moments of the union. ``paper_eq5``: the plain means of means and (co)variances, whatever
    the counts. ``mixture``: the parts themselves.
    """
    if how == "mixture":
        return list(parts)
    count = sum(part.count for part in parts)
    triangles = [part.triangle for part in parts if part.triangle is not None]
    if how == "paper_eq5":
        mean = torch.stack([part.mean for part in parts]).mean(0)
        variances = [part.variance for part in parts if part.variance is not None]
        return [Gaussian(count, mean, _mean(variances), triangle=_mean(triangles))]
    zero = torch.zeros_like(parts[0].mean)
    union = moments.join(
        Moments(part.count, part.mean, zero if part.variance is None else part.variance) for part in parts
    )
    variance = None if parts[0].variance is None else union.variance
    return [Gaussian(count, union.mean, variance, triangle=_join(parts, triangles, union.mean))]


def _mean(values: list[Tensor]) -> Tensor | None:
    return torch.stack(values).mean(0) if values else None


def _join(parts: Sequence[Gaussian], triangles: list[Tensor], mean: Tensor) -> Tensor | None:
    if not triangles:
        return None
    counts, means = [part.count for part in parts], torch.stack([part.mean for part in parts])
    return covariances.join(counts, means, torch.stack(triangles), mean)


def draw(parts: Sequence[Gaussian], count: int, generator: torch.Generator, eps: float) -> Tensor:
    """Features [count, *S] of a class: each from one of the parts, in proportion to their samples."""
    sizes = torch.tensor([float(part.count) for part in parts])
    chosen = torch.zeros(count, dtype=torch.int64)
    if len(parts) > 1:
        chosen = torch.multinomial(sizes, count, replacement=True, generator=generator)
    like = parts[0].mean
    drawn = torch.empty(count, *like.shape, dtype=like.dtype, device=like.device)
    for place, part in enumerate(parts):
        rows = (chosen == place).nonzero()[:, 0]
        drawn[rows.to(like.device)] = _draw(part, len(rows), generator, eps)
    return drawn


def _draw(part: Gaussian, count: int, generator: torch.Generator, eps: float) -> Tensor:
    noise = normal((count, *part.mean.shape), part.mean, generator)
    if part.triangle is not None:
        spread = covariances.root(part.triangle, part.mean.numel(), eps)
        return part.mean + (noise.flatten(1).double() @ spread).to(noise).view_as(noise)
    if part.variance is None:
        return part.mean + math.sqrt(SPREAD_OF_POINTS) * noise
    result = part.mean + (part.variance + eps).sqrt() * noise
    if part.factors is not None:
        along = normal((count, len(part.factors)), part.mean, generator)
        result = result + torch.tensordot(along, part.factors, dims=1)
    return result


def normal(size: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the dtype of ``like`` and where it is, drawn on the CPU."""
    if like.is_meta:
        # Without content there is nothing to draw, which would take longer than all else.
        return like.new_empty(size)
    return torch.randn(size, generator=generator, dtype=like.dtype).to(like.device)
