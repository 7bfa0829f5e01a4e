"""One direction per class in the harmonised space, and how features are drawn to it (FedSGA)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.messages import Weights, sent_as


@dataclass(frozen=True)
class Prototypes:
    """What is known of the classes."""

    directions: Tensor = sent_as("prototype")
    """[Y, d_z], of unit length where seen."""
    seen: Tensor = sent_as("prototype")
    """[Y] bool."""
    projector: Weights | None = sent_as("weights", default=None)
    """What clients embed by (``phi_s: reuse_phi``): entries of the head, see ``harmoniser.shallowest``."""

    def similarity(self, features: Tensor) -> Tensor:
        """Cosines of [b, d_z] features with all classes, [b, Y]."""
        return F.normalize(features, dim=1) @ self.directions.T

    def alignment(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean cosine with the own class (eq. 3) over samples whose class was seen; 0 without any."""
        known = self.seen[labels]
        own = self.similarity(features).gather(1, labels[:, None])[:, 0]
        return torch.where(known, own, 0.0).sum() / known.sum().clamp(min=1)

    def cosine_loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """One minus the cosine with the own class, a mean over the batch."""
        own = self.similarity(features).gather(1, labels[:, None])[:, 0]
        return torch.where(self.seen[labels], 1 - own, 0.0).mean()

    def contrastive_loss(self, features: Tensor, labels: Tensor, tau: float) -> Tensor:
        """``-log softmax_y(cos / tau)`` of the own class among seen ones, a mean over the batch.

        Samples of classes never seen add nothing.
        """
        logits = (self.similarity(features) / tau).masked_fill(~self.seen, -1e9)
        own = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return torch.where(self.seen[labels], -own, 0.0).mean()


class PrototypeMemory:
    """Prototypes with the sums that they move by."""

    def __init__(self, num_classes: int, size: int, momentum: float, like: Tensor) -> None:
        """``like`` has the device and dtype."""
        self.momentum = momentum
        self.current = Prototypes(
            like.new_zeros(num_classes, size), like.new_zeros(num_classes, dtype=torch.bool)
        )
        self._forget()

    def _forget(self) -> None:
        directions = self.current.directions
        self._sums, self._counts = torch.zeros_like(directions), directions.new_zeros(len(directions), 1)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count in [b, d_z] features."""
        # A product, not index_add_: its order of summation is fixed on a GPU as well.
        member = F.one_hot(labels, len(self._sums)).to(self._sums.dtype).T
        self._sums = self._sums + member @ features.detach().to(self._sums.dtype)
        self._counts = self._counts + member.sum(1, keepdim=True)

    def move(self) -> None:
        """``C <- mu C + (1 - mu) mean``, then to unit length; a class not met since last time stays."""
        present = self._counts > 0
        mean = self._sums / self._counts.clamp(min=1)
        known, old = self.current.seen[:, None], self.current.directions
        mixed = torch.where(known, self.momentum * old + (1 - self.momentum) * mean, mean)
        directions = torch.where(present, F.normalize(mixed, dim=1), old)
        self.current = Prototypes(directions, self.current.seen | present[:, 0])
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Between rounds, when nothing waits to be counted in."""
        return {"directions": self.current.directions, "seen": self.current.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a stored state."""
        self.current = Prototypes(state["directions"], state["seen"])
        self._forget()
