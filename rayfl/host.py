"""What a process offers the parties living in it: their data, modules to borrow, and what everybody knows."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rayfl import tree
from rayfl.allocator import keep_freed_memory
from rayfl.cutting import Values
from rayfl.data.augment import Augment
from rayfl.data.config import AugmentKind
from rayfl.data.prefetch import Prefetcher
from rayfl.messages import Weights
from rayfl.models import is_norm_buffer
from rayfl.tasks import TASKS
from rayfl.training import Rows, TrainingConfig, clip, lr_at, make_optimizer

if TYPE_CHECKING:
    from rayfl.algorithms.base import Algorithm


Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and labels."""


class Batch(NamedTuple):
    """[b, C, H, W] inputs; [b] int64 labels or [b, H, W] uint8 masks."""

    inputs: Tensor
    labels: Tensor


class Source(Protocol):
    """What parties need of a dataset split."""

    labels: Any
    """[N] int64 numpy, the class of each row; all 0 for segmentation."""

    def __len__(self) -> int: ...
    def batch(
        self, indices: Rows, dtype: torch.dtype, device: str, augment: Augment | None = None
    ) -> tuple[Tensor, Tensor]:
        """Normalised inputs and labels of some rows, augmented first where asked. Called from any thread."""


@dataclass(frozen=True)
class Facts:
    """What everybody may know before round 1."""

    seed: int
    num_samples: tuple[int, ...]
    """Training samples per client."""
    client_edges: tuple[int, ...]
    """The edge server of each client."""
    num_edges: int
    num_classes: int
    batch_norm: bool
    """Whether some block needs more than one sample to train on."""
    task: str = "classification"
    """What the dataset asks for: a key of ``rayfl.tasks.TASKS``."""

    @property
    def num_clients(self) -> int:
        """All clients, sampled or not."""
        return len(self.num_samples)


@dataclass(frozen=True)
class Blueprint:
    """All that a process needs to build any party. Pickles small: data travel as paths and row numbers."""

    algorithm: "type[Algorithm]"
    config: TrainingConfig
    facts: Facts
    model: Callable[[], nn.Sequential]
    """Builds the whole initial model, the same in every process."""
    train: Source
    test: Source
    client_rows: tuple[Rows, ...]
    client_test_rows: tuple[Rows, ...]
    validation_rows: Rows
    bn: str = "average"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    deterministic: bool = True
    augment: AugmentKind = "none"
    prefetch: int = 0
    """Threads per process that make training batches ahead."""


class Host:
    """What one process offers the parties living in it: data, and modules to borrow.

    Modules are lent for a round and taken back, so memory grows with the parties at work, not with all.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        keep_freed_memory()
        torch.set_num_threads(blueprint.threads)
        if blueprint.device.startswith("cuda") and blueprint.deterministic:
            torch.use_deterministic_algorithms(True)
        self.blueprint = blueprint
        self.config = blueprint.config
        self.facts = blueprint.facts
        self.task = TASKS[blueprint.facts.task]
        self.device = blueprint.device
        self.dtype = torch.float64 if blueprint.dtype == "float64" else torch.float32
        self.prefetcher = Prefetcher(blueprint.prefetch)
        self._shelf: dict[str, list[Lent]] = defaultdict(list)

    @cached_property
    def parts(self) -> dict[str, nn.Sequential]:
        """The parts of the model ("client", "edge", "main") before round 1: never written to."""
        whole = self.blueprint.model().to(device=self.device, dtype=self.dtype)
        return self.blueprint.algorithm.cut(self.config, whole)

    @property
    def hollow(self) -> bool:
        """Whether tensors have no content (``rayfl cost``): what sends nothing may then be left out."""
        return self.device == "meta"

    @cached_property
    def image_values(self) -> int:
        """Values of one image, for which one is read."""
        return self.batch(self.blueprint.train, np.zeros(1, dtype=np.int64)).inputs.numel()

    def initial(self, part: str) -> dict[str, Tensor]:
        """The weights of a part ("client", "edge", "main") before round 1: shared, so never written to."""
        return dict(self.parts[part].state_dict())

    def borrow(self, part: str) -> "Lent":
        """A module of the part's shape, in training mode; whoever borrows it loads its own weights."""
        shelf = self._shelf[part]
        if shelf:
            return shelf.pop()
        blueprint = self.blueprint
        whole = blueprint.model().to(device=self.device, dtype=self.dtype)
        module = blueprint.algorithm.cut(self.config, whole)[part].train()
        return Lent(module, dict(module.state_dict()), tuple(module.parameters()))

    def give_back(self, part: str, lent: "Lent") -> None:
        """Return a borrowed module."""
        self._shelf[part].append(lent)

    @contextlib.contextmanager
    def frozen(self, part: str, weights: Weights) -> Iterator[nn.Sequential]:
        """A module of the part with these weights, in evaluation mode and without graph."""
        lent = self.borrow(part)
        lent.load(weights)
        try:
            with evaluating(lent.module), self.autocast():
                yield lent.module
        finally:
            self.give_back(part, lent)

    def batch(self, source: Source, rows: Rows, augment: Augment | None = None) -> Batch:
        """Rows of a split as tensors on this host's device."""
        if augment is None:
            return Batch(*source.batch(rows, self.dtype, self.device))
        return Batch(*source.batch(rows, self.dtype, self.device, augment))

    def loss(self, logits: Tensor, labels: Tensor, of: Loss | None = None) -> Tensor:
        """The task's loss of a batch, a scalar with graph, reduced as configured; or the one of ``of``."""
        if of is not None:
            return of(logits, labels)
        return self.task.loss(logits, labels, self.config.loss_reduction)

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """A fresh optimiser, as configured."""
        return make_optimizer(self.config, parameters, lr)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """bfloat16 compute where the run asks for it."""
        if self.blueprint.dtype == "bfloat16":
            return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def travels(self, weights: Weights) -> dict[str, Tensor]:
        """What of a state dict is averaged: all of it, or all but BatchNorm statistics (``bn: local``)."""
        if self.blueprint.bn != "local":
            return dict(weights)
        return {name: value for name, value in weights.items() if not is_norm_buffer(name)}


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in training is in evaluation mode and without graph; statistics of its norms stay."""
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train()


@dataclass(frozen=True)
class Lent:
    """A module on loan."""

    module: nn.Sequential
    state: dict[str, Tensor]
    """Its state dict, sharing memory with it: walking a small module for it costs as much as a step."""
    parameters: tuple[nn.Parameter, ...]
    """Its parameters, listed once for the same reason."""

    def load(self, weights: Weights, strict: bool = True) -> None:
        """Copy weights in; all of them must be given, unless not ``strict``."""
        if strict and weights.keys() != self.state.keys():
            raise KeyError(f"weights {sorted(weights.keys() ^ self.state.keys())} are missing or unknown")
        with torch.no_grad():
            for name, value in weights.items():
                self.state[name].copy_(value)


class Learner:
    """A borrowed module with its optimiser, for the length of a round."""

    def __init__(self, host: Host, part: str, weights: Weights, t: int, kept: "Kept | None" = None) -> None:
        self.host, self.part = host, part
        self._lent = host.borrow(part)
        self.model = self._lent.module
        self._lent.load({**weights, **(kept.buffers if kept else {})})
        self.lr = lr_at(host.config, t)
        self.renew_optimizer()
        for parameter in self._lent.parameters:
            parameter.grad = None
        if kept and kept.optimizer:
            # A copy: what is kept may also be a checkpoint, or a message that must not be written to.
            rates = [group["lr"] for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(copy.deepcopy(kept.optimizer))
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    @property
    def state(self) -> Weights:
        """The weights as they are, sharing memory with the model."""
        return self._lent.state

    def renew_optimizer(self) -> None:
        """Forget momentum and moments."""
        self.optimizer = self.host.optimizer(self._lent.parameters, self.lr)

    def replace(self, weights: Weights) -> None:
        """Go on from an average, with a fresh optimiser unless the config keeps it."""
        self._lent.load(weights, strict=self.host.blueprint.bn != "local")
        if self.host.config.reset_optimizer != "keep":
            self.renew_optimizer()

    def forward(self, inputs: Values, blocks: slice | None = None) -> Any:
        """The output of the part, or of some consecutive blocks of it, with graph: :data:`Values` again."""
        model = self.model if blocks is None else self.model[blocks]
        with self.host.autocast():
            return model(inputs)

    def step(self) -> None:
        """One optimiser step on the gradients at hand, which are then cleared."""
        clip(self.host.config, self._lent.parameters)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        """A copy of what would travel now."""
        return tree.clone(self.host.travels(self._lent.state))

    def close(self, keep_optimizer: bool = False) -> "Kept":
        """Give the module back; what the party keeps until its next round comes back."""
        kept = Kept()
        if self.host.blueprint.bn == "local":
            state = self._lent.state
            kept.buffers = tree.clone({name: state[name] for name in state if is_norm_buffer(name)})
        if keep_optimizer or self.host.config.reset_optimizer == "keep":
            kept.optimizer = self.optimizer.state_dict()
        self.host.give_back(self.part, self._lent)
        return kept


@dataclass
class Kept:
    """What a learner leaves behind for its party's next round: empty unless the config asks for it."""

    buffers: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; empty if there is nothing to keep."""
        return {key: value for key, value in vars(self).items() if value}
