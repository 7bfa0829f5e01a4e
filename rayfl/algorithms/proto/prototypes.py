"""A mean feature per class: sent, drawn to in training, and predicted by."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl import tree
from rayfl.messages import Update, sent_as

FAR = 100.0
"""How much farther than the farthest of its own classes a client puts all others: the loss stays finite."""


@dataclass(frozen=True)
class Prototypes:
    """Those of the J classes that the sender has. Nothing of a model or of a single sample."""

    classes: tuple[int, ...] = sent_as("counts")
    """[J], ascending."""
    vectors: Tensor = sent_as("prototype")
    """[J, *S], without graph; [0] of no class."""
    counts: tuple[int, ...] = sent_as("counts")
    """[J], samples behind each; empty where all senders count alike."""

    @classmethod
    def of(cls, vectors: Mapping[int, Tensor], counts: Mapping[int, int] | None = None) -> "Prototypes":
        """Pack means [*S] by class, with their counts where these are to be sent."""
        classes = tuple(sorted(vectors))
        stacked = torch.stack([vectors[label] for label in classes]) if classes else torch.empty(0)
        return cls(classes, stacked, tuple(counts[label] for label in classes) if counts else ())

    def each(self) -> Iterator[tuple[int, Tensor, int]]:
        """Class, mean and what it counts, one by one."""
        return zip(self.classes, self.vectors, self.counts or (1,) * len(self.classes), strict=True)

    def pull(self, features: Tensor, labels: Tensor) -> Tensor:
        """The squared distance of [b, *S] features from their classes' prototypes: a scalar with graph.

        A mean over samples and dimensions. A sample whose class has no prototype adds 0.
        """
        if not self.classes:
            return features.new_zeros(())
        match = labels[:, None] == torch.tensor(self.classes, device=labels.device)
        row = match.int().argmax(1)
        known = match.any(1).view(-1, *[1] * (features.dim() - 1))
        features = features.to(self.vectors.dtype)
        return F.mse_loss(features, torch.where(known, self.vectors[row], features.detach()))


def averaged(sent: Mapping[int, Prototypes], num_clients: int) -> dict[int, Tensor]:
    """The mean [*S] of each class over the clients that sent it, weighted by counts where these were sent.

    Summed in the order of :mod:`rayfl.tree`; what a single client sent comes back bit for bit.
    """
    by_class: dict[int, dict[int, Update]] = defaultdict(dict)
    for client, prototypes in sent.items():
        for label, vector, count in prototypes.each():
            by_class[label][client] = Update({"mean": vector}, float(count))
    means = {label: tree.weighted_mean(updates, num_clients) for label, updates in by_class.items()}
    return {label: mean.weights["mean"] for label, mean in means.items() if mean is not None}


class NearestPrototype(nn.Module):
    """Takes the place of a model's last block: a class's logit is minus the distance to its prototype."""

    def __init__(self, prototypes: Prototypes, classes: Collection[int], num_classes: int) -> None:
        """Only ``classes`` are predicted, as far as they have a prototype; without any, all are alike."""
        super().__init__()
        rows = [row for row, label in enumerate(prototypes.classes) if label in classes]
        self.labels = [prototypes.classes[row] for row in rows]
        self.vectors = prototypes.vectors[rows].flatten(1) if rows else prototypes.vectors
        self.num_classes = num_classes

    def forward(self, features: Tensor) -> Tensor:
        """[b, K] logits of [b, *S] features; the distance is :meth:`Prototypes.pull`'s of one sample."""
        if not self.labels:
            return features.new_zeros(len(features), self.num_classes)
        flat = features.flatten(1).to(self.vectors.dtype)
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(flat, self.vectors, compute_mode=exact).square() / flat.shape[1]
        logits = -(distances.amax(1, keepdim=True) + FAR).repeat(1, self.num_classes)
        logits[:, self.labels] = -distances
        return logits
