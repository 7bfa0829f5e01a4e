"""What stands for the classes of a place, by what the task has a class say of a feature."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rayfl.algorithms.sfp.classes import ClassPrototypes
from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.image_labels import ImageLabelPrototypes
from rayfl.algorithms.sfp.masks import MaskPrototypes
from rayfl.algorithms.sfp.messages import Message
from rayfl.algorithms.sfp.objective import Objective
from rayfl.host import Batch, Host
from rayfl.training import Rows

Labelled = tuple[Tensor, Tensor]
"""Features [b, *S] with labels [b], or with masks [b, H, W]."""


class Prototypes(Protocol):
    """As one party takes, passes on and uses them."""

    def objective(self, lr: float, t: int, index: int) -> Objective:
        """What a party minimises in round ``t``; ``index`` is its own among those of all tiers."""

    def labels(self, batch: Batch, rows: Rows) -> Tensor:
        """Of a batch of those rows of the training set: classes, which are read, on the CPU."""

    def describe(self, batches: Iterable[Labelled]) -> Message | None:
        """What a client sends of the features of its data; None where there is nothing to say."""

    def sources(self, messages: Mapping[int, Any]) -> Any:
        """What is drawn from, pooled over what places sent; false where nobody sent anything."""

    def draw(self, sources: Any, views: int, generator: torch.Generator) -> Labelled:
        """Features as the tier below would put them out, one view after the other with equal labels."""

    def pass_on(self, batches: Iterable[Labelled], sources: Any) -> Message | None:
        """What an edge sends of the features that it made of its draws, with counts of the real ones."""


def prototypes(host: Host, part: str) -> Prototypes:
    """Of the party that holds ``part``: "client", "edge" or "main"."""
    config: HSFPConfig = host.config  # type: ignore[assignment]
    return _KINDS[config.seg_mode if host.facts.task == "segmentation" else "classes"](host, part)


_KINDS: Mapping[str, Callable[[Host, str], Prototypes]] = {
    "classes": ClassPrototypes,
    "pixel_moments": MaskPrototypes,
    "repo_image_label": ImageLabelPrototypes,
}
