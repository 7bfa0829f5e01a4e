"""A run without content: a method's own rounds on empty tensors, so that its ledger counts as ever."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.costs.blocks import Answers, HollowPart, Pass
from rayfl.costs.empty import empty
from rayfl.data import Dataset
from rayfl.data.info import Outline
from rayfl.data.sampling import Ints
from rayfl.fleet import Fleet
from rayfl.host import Blueprint, Host, Lent, Loss
from rayfl.layout import local_layout
from rayfl.messages import Weights
from rayfl.shell import Shell


class HollowSource(Dataset):
    """A split without pixels. Its labels are real, or made up; its masks are made up."""

    def __init__(self, known: Dataset | Outline, labels: Ints, views: int = 1) -> None:
        """``views`` are the rows that augmentation makes of one."""
        self.labels, self.shape, self.task, self.views = labels, known.shape, known.task, views
        self.domains, self.groups = None, None
        self.domain_names: tuple[str, ...] = ()
        if isinstance(known, Dataset):
            self.name, self.num_classes = known.name, known.num_classes
            self.domains, self.groups, self.domain_names = known.domains, known.groups, known.domain_names
        else:
            self.name, self.num_classes = "an unprepared set", len(known.class_counts)

    @property
    def encoded(self) -> bool:
        return False

    def batch(
        self,
        indices: object,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        augment: object = None,
    ) -> tuple[Tensor, Tensor]:
        """Empty inputs and labels; masks that can be read."""
        assert isinstance(indices, Sized)
        views = 1 if augment is None else self.views
        count = len(indices) * views
        inputs = empty((count, *self.shape), dtype)
        if self.task == "segmentation":
            return inputs, self._masks(np.asarray(indices)).repeat(views, 1, 1)
        return inputs, empty((count,), torch.int64)

    def _masks(self, rows: Ints) -> Tensor:
        """[n, H, W] on the CPU: the upper half of every other image is lesion, so that wherever there are two
        images there is all that a mask can hold."""
        height, width = self.shape[1:]
        lesion = (rows[:, None] % 2 == 0) & (np.arange(height) < height / 2)
        return torch.from_numpy(lesion.astype(np.uint8))[:, :, None].expand(-1, -1, width)


class _Lent(Lent):
    """There is nothing to copy in."""

    def load(self, weights: Weights, strict: bool = True) -> None:
        pass


class PhantomHost(Host):
    """Lends hollow modules."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._answers: dict[str, Answers] = defaultdict(dict)

    def borrow(self, part: str) -> Lent:
        lent = super().borrow(part)
        if not isinstance(lent, _Lent):
            lent = _Lent(lent.module, lent.state, lent.parameters)
            lent.module.forward = HollowPart(lent.module, self._answers[part])  # type: ignore[method-assign]
        return lent

    def loss(self, logits: Tensor, labels: Tensor, of: Loss | None = None) -> Tensor:
        loss: Tensor = Pass.apply((((), logits.dtype),), None, 1, logits)[0]
        return loss

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Steps once, which makes all the state that it will ever have, and keeps gradients."""
        optimizer: Any = super().optimizer(parameters, lr)
        step = optimizer.step

        def only_once() -> None:
            step()
            optimizer.step = lambda: None

        optimizer.step, optimizer.zero_grad = only_once, lambda: None
        result: torch.optim.Optimizer = optimizer
        return result

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        # The blocks answer in the dtypes that it would give; the meta device has none.
        return contextlib.nullcontext()


class _Shell(Shell):
    host_type = PhantomHost

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.blueprint, fleet.layout.members(0), fleet.layout.topology)
        # Results stay on the meta device, off which nothing can be moved.
        self.device = "cpu"

    def _check_finite(self, message: Any, index: int, where: str) -> None:
        """There are no values to look at."""


class PhantomFleet(Fleet):
    """Everybody in this process, handling empty tensors."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint, local_layout(blueprint))
        self._hosts = [_Shell(self)]


def phantom(plan: Blueprint) -> Blueprint:
    """The same federation where tensors have no content."""
    return replace(plan, device="meta", threads=torch.get_num_threads(), prefetch=0)
