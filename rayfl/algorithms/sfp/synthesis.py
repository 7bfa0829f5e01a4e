"""From the moments of many places to a set of drawn features."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.gaussians import Gaussian, draw, pool
from rayfl.algorithms.sfp.messages import ClassMoments, unpacked

Sources = dict[int, list[Gaussian]]
"""What is drawn from, by class in ascending order."""


def sources(messages: Mapping[int, ClassMoments | None], config: HSFPConfig) -> Sources:
    """Pool what places sent, by ascending id of the place."""
    by_class: Sources = defaultdict(list)
    for place in sorted(messages):
        message = messages[place]
        if message is not None:
            for label, gaussian in unpacked(message).items():
                by_class[label].append(gaussian)
    return {label: pool(by_class[label], config.pooling) for label in sorted(by_class)}


def counts(found: Sources) -> dict[int, int]:
    """Real samples behind each class."""
    return {label: sum(part.count for part in parts) for label, parts in found.items()}


def synthesise(found: Sources, config: HSFPConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features [n, *S] and, on the CPU, labels [n], class after class; there must be a class."""
    real = counts(found)
    features, labels = [], []
    for label, parts in found.items():
        share = real[label] * len(real) / sum(real.values()) if config.syn_prior == "empirical" else 1.0
        number = max(1, round(config.syn_per_class * share))
        features.append(draw(parts, number, generator, config.eps))
        labels.append(torch.full((number,), label))
    drawn = torch.cat(features)
    return drawn.clamp_min(0) if config.clip_nonneg else drawn, torch.cat(labels)


def shuffled(number: int, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of the batches of some passes, each freshly shuffled. A last batch of one is left out: no
    norm over samples and no contrast can use it."""
    for _ in range(epochs):
        for rows in torch.randperm(number, generator=generator).split(size):
            if len(rows) > 1 or number == 1:
                yield rows
