"""Prototypes where the task is classification: a feature, map or vector, is of its image's class."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.gaussians import fit
from rayfl.algorithms.sfp.messages import ClassMoments, packed
from rayfl.algorithms.sfp.objective import Objective
from rayfl.algorithms.sfp.synthesis import Sources, counts, sources, synthesise
from rayfl.host import Batch, Host
from rayfl.training import Rows


class ClassPrototypes:
    """A Gaussian of the features of each class."""

    def __init__(self, host: Host, part: str) -> None:
        self.host, self.part = host, part
        self.config: HSFPConfig = host.config  # type: ignore[assignment]
        self.where = self.config.contrast_on if part == "client" else "gap"

    def objective(self, lr: float, t: int, index: int) -> Objective:
        """Contrast, or cross-entropy, of images."""
        return Objective(self.host, lr, self.where, t, index)

    def labels(self, batch: Batch, rows: Rows) -> Tensor:
        """As the dataset has them."""
        return torch.from_numpy(self.host.blueprint.train.labels[rows])

    def describe(self, batches: Iterable[tuple[Tensor, Tensor]]) -> ClassMoments | None:
        """The classes that have samples enough."""
        found = fit(batches, self.config.covariance, self.config.rank)
        return packed({label: one for label, one in found.items() if one.count >= self.config.min_count})

    def sources(self, messages: Mapping[int, ClassMoments | None]) -> Sources:
        """By class."""
        return sources(messages, self.config)

    def draw(self, found: Sources, views: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features [views * n, *S] and labels [views * n]."""
        drawn = [synthesise(found, self.config, generator) for _ in range(views)]
        return torch.cat([features for features, _ in drawn]), torch.cat([labels for _, labels in drawn])

    def pass_on(self, batches: Iterable[tuple[Tensor, Tensor]], found: Sources) -> ClassMoments | None:
        """The classes that were drawn."""
        real = counts(found)
        seen = fit(batches, self.config.covariance, self.config.rank)
        return packed({label: replace(one, count=real[label]) for label, one in seen.items()})
