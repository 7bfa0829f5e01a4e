"""What crosses the tiers of H-SFP: Gaussians by class, and nothing of a single sample but in ``Features``."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfl.algorithms.sfp.gaussians import Gaussian
from rayfl.algorithms.sfp.layouts import Layouts
from rayfl.messages import sent_as


@dataclass(frozen=True)
class ClassMoments:
    """Of the J classes that a place has, in ascending order."""

    classes: Tensor = sent_as("counts")
    """[J] int32."""
    counts: Tensor = sent_as("counts")
    """[J] int32, real samples behind each, however many were drawn on the way."""
    means: Tensor = sent_as("moments")
    """[J, *S] float32."""
    stds: Tensor | None = sent_as("moments")
    """[J, *S] float32; None where variances are not sent."""
    ranks: Tensor | None = sent_as("counts")
    """[J] int32, how many factors each class has; None without any."""
    factors: Tensor | None = sent_as("moments")
    """[sum of ranks, *S] float32."""
    triangles: Tensor | None = sent_as("moments")
    """[J, D (D + 1) / 2] float32 of D features: lower triangles of covariances, in the place of ``stds``."""


@dataclass(frozen=True)
class MaskMoments:
    """Of a place that has masks."""

    moments: ClassMoments
    """Of the features [C] at positions, which are what ``counts`` counts."""
    layouts: Layouts
    """Of the masks."""


@dataclass(frozen=True)
class Features:
    """Of single images, which the method itself never sends."""

    maps: Tensor = sent_as("activation")
    """[n, *S]."""
    masks: Tensor = sent_as("label")
    """[n, H, W] uint8."""


Message = ClassMoments | MaskMoments


def packed(gaussians: Mapping[int, Gaussian]) -> ClassMoments | None:
    """The message; None where there is nothing to say."""
    if not gaussians:
        return None
    some = list(gaussians.values())
    stds = [one.variance.sqrt() for one in some if one.variance is not None]
    factors = [one.factors for one in some if one.factors is not None]
    triangles = [one.triangle for one in some if one.triangle is not None]
    return ClassMoments(
        torch.tensor(list(gaussians), dtype=torch.int32),
        torch.tensor([one.count for one in some], dtype=torch.int32),
        torch.stack([one.mean for one in some]),
        torch.stack(stds) if stds else None,
        torch.tensor([len(one) for one in factors], dtype=torch.int32) if factors else None,
        torch.cat(factors) if factors else None,
        torch.stack(triangles) if triangles else None,
    )


def unpacked(message: ClassMoments) -> dict[int, Gaussian]:
    """What was packed."""
    found = {}
    ranks = [0] * len(message.classes) if message.ranks is None else message.ranks.tolist()
    per_class = None if message.factors is None else message.factors.split(ranks)
    for row, (label, count) in enumerate(zip(message.classes.tolist(), message.counts.tolist(), strict=True)):
        variance = None if message.stds is None else message.stds[row].square()
        factors = None if per_class is None else per_class[row]
        triangle = None if message.triangles is None else message.triangles[row]
        found[label] = Gaussian(count, message.means[row], variance, factors, triangle)
    return found
