"""What clients and edges minimise."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.contrast import directions, infonce, supcon
from rayfl.algorithms.sfp.pixels import balanced, by_position, pool, shrink
from rayfl.host import Host
from rayfl.seeding import derive, generator


class Objective:
    """Of one place in one round: contrast, or cross-entropy by a linear head that ends with the round."""

    def __init__(self, host: Host, lr: float, where: str, *ids: int) -> None:
        """``where``: ``gap`` or ``flat``; ``ids`` seed the head."""
        self._host, self._lr, self._where, self._ids = host, lr, where, ids
        self._config: HSFPConfig = host.config  # type: ignore[assignment]
        self._head: nn.Linear | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Of features [b, *S], first views before second ones; a scalar, without graph for no step."""
        config = self._config
        if config.contrast == "none":
            return self._cross_entropy(
                features.flatten(1) if self._where == "flat" else _pooled(features), labels
            )
        if self._hopeless(labels):
            return features.detach().new_zeros(())
        unit = directions(features.float() if features.dtype != torch.float64 else features, self._where)
        if config.contrast == "infonce":
            return infonce(unit, config.tau)
        return supcon(unit, labels, config.tau)

    def _cross_entropy(self, vectors: Tensor, labels: Tensor) -> Tensor:
        if self._head is None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(derive(self._host.facts.seed, "thrown away", *self._ids))
                # A label of an image is one of two even where a mask needs one output.
                classes = max(2, self._host.facts.num_classes)
                self._head = nn.Linear(vectors.shape[1], classes).to(vectors)
            self._optimizer = self._host.optimizer(self._head.parameters(), self._lr)
        return functional.cross_entropy(self._head(vectors), labels)

    def _hopeless(self, labels: Tensor) -> bool:
        """Whether a batch has nothing to tell apart, or, where samples have one view, nothing in common."""
        if self._config.skip_one_class_batches and (labels == labels[0]).all():
            return True
        return self._config.views == 1 and bool((labels[:, None] == labels).sum() == len(labels))

    def step(self) -> None:
        """Let the head follow, where there is one."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()


class PositionObjective(Objective):
    """Contrast of positions of maps by what masks have there, some of them in each step."""

    def __init__(self, host: Host, lr: float, most: int | None, *ids: int) -> None:
        """``most``: cells per side that larger maps are averaged to; ``ids`` seed the choice."""
        super().__init__(host, lr, "gap", *ids)
        self._most, self._steps = most, 0

    def loss(self, maps: Tensor, masks: Tensor) -> Tensor:
        """Of maps [b, C, h, w] and masks [b, H, W]; a scalar, without graph for no step."""
        return self._host.loss(maps, masks, self._of_positions)

    def _of_positions(self, maps: Tensor, masks: Tensor) -> Tensor:
        self._steps += 1
        height, width = maps.shape[-2:]
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        if self._most is not None:
            height, width = min(height, self._most), min(width, self._most)
            maps = pool(maps, (height, width))
        positions = by_position(maps, shrink(masks, (height, width)))
        choice = generator(self._host.facts.seed, "positions", *self._ids, self._steps)
        return super().loss(*balanced(*positions, choice))


def _pooled(features: Tensor) -> Tensor:
    return features.mean((2, 3)) if features.dim() == 4 else features
