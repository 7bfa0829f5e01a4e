"""Knobs of local training that all methods share, and what they mean: steps, batches, optimisers, rates."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Le
from torch import nn

from rayfl.seeding import numpy_generator

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Local training, participation and averaging."""

    name: str
    """The method."""
    lr: Annotated[float, Gt(0)] = 0.05
    """Learning rate eta of round 1."""
    lr_schedule: Literal["constant", "exponential", "step", "cosine"] = "constant"
    """How the rate changes from round to round."""
    lr_decay: Annotated[float, Gt(0), Le(1)] = 0.993
    """Factor per round (exponential) or per period (step)."""
    lr_period: Annotated[int, Ge(1)] = 100
    """Rounds per step (step) or from lr to lr_min (cosine)."""
    lr_min: Annotated[float, Ge(0)] = 0.0
    """The rate never falls below this."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimiser of clients and servers alike."""
    momentum: Annotated[float, Ge(0)] = 0.0
    """SGD momentum."""
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """L2 penalty (sgd, adam) or decoupled decay (adamw)."""
    reset_optimizer: Literal["per_round", "keep", "per_batch"] = "per_round"
    """When momentum and moments start anew: with each round's averaged weights, never, or (servers of
    split methods, as in the SplitFed authors' code) at every batch."""
    clip_norm: Annotated[float, Gt(0)] | None = None
    """Global gradient norm per optimiser step. In split methods each side clips by its own norm."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Samples B per local step."""
    local_epochs: Annotated[int, Ge(0)] = 1
    """Passes E over a participant's data per round."""
    local_steps: Annotated[int, Ge(1)] | None = None
    """Steps per round instead of epochs; a client that runs out reshuffles and goes on."""
    drop_last: bool = False
    """Leave out an incomplete last batch (a client smaller than a batch uses all it has)."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Whether a batch's loss is the mean or the sum over its samples."""
    participation: Annotated[float, Gt(0), Le(1)] = 1.0
    """Fraction C of clients sampled per round, without replacement; at least one."""
    sampling: Literal["uniform", "by_size"] = "uniform"
    """Whether clients are equally likely to be sampled or in proportion to their data."""
    dropout_rate: Annotated[float, Ge(0), Le(1)] = 0.0
    """Probability that a sampled client fails to show up."""
    weights: Literal["size", "batch", "uniform"] = "size"
    """What a participant's share of an average goes by: its samples, its batch size, or nothing."""

    def mass(self, num_samples: int) -> float:
        """The mass of a participant's update."""
        if self.weights == "uniform":
            return 1.0
        return float(min(self.batch_size, num_samples) if self.weights == "batch" else num_samples)


def lr_at(config: TrainingConfig, t: int) -> float:
    """The learning rate of round ``t`` (from 1): a pure function, so that resuming changes nothing."""
    passed = t - 1
    if config.lr_schedule == "exponential":
        rate = config.lr * config.lr_decay**passed
    elif config.lr_schedule == "step":
        rate = config.lr * config.lr_decay ** (passed // config.lr_period)
    elif config.lr_schedule == "cosine":
        done = min(passed / config.lr_period, 1.0)
        rate = config.lr_min + (config.lr - config.lr_min) * (1 + math.cos(math.pi * done)) / 2
    else:
        rate = config.lr
    return max(rate, min(config.lr_min, config.lr))


def make_optimizer(
    config: TrainingConfig, parameters: Iterable[nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    """The configured optimiser; element-wise, so that two halves step like the whole.

    A parameter with an attribute ``lr_factor`` steps at that multiple of ``lr``.
    """
    # The plain group may be empty: a slice of a model may have nothing to learn.
    by_factor: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in parameters:
        by_factor.setdefault(getattr(parameter, "lr_factor", 1.0), []).append(parameter)
    groups = [{"params": some, "lr": lr * factor} for factor, some in by_factor.items()]
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr=lr, weight_decay=config.weight_decay)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        groups,
        lr=lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
    )


def clip(config: TrainingConfig, parameters: Iterable[nn.Parameter]) -> None:
    """Clip by the global norm of one side's gradients, where asked."""
    if config.clip_norm is not None:
        nn.utils.clip_grad_norm_(list(parameters), config.clip_norm)


def steps_per_epoch(config: TrainingConfig, num_samples: int, batch_norm: bool) -> int:
    """Batches in one pass. A last batch of one sample is skipped under BatchNorm, which can't train on it."""
    if num_samples == 0:
        return 0
    full, rest = divmod(num_samples, min(config.batch_size, num_samples))
    if rest == 0:
        return 0 if batch_norm and num_samples == full else full
    skipped = config.drop_last or (rest == 1 and batch_norm)
    return full if skipped else full + 1


def steps_per_round(config: TrainingConfig, num_samples: int, batch_norm: bool) -> int:
    """Local steps of a client in one round; 0 if its data can't make a single batch."""
    per_epoch = steps_per_epoch(config, num_samples, batch_norm)
    if config.local_steps is not None:
        return config.local_steps if per_epoch else 0
    return per_epoch * config.local_epochs


def samples_seen(config: TrainingConfig, num_samples: int, steps: int, batch_norm: bool) -> int:
    """Samples that ``steps`` steps train on."""
    per_epoch = steps_per_epoch(config, num_samples, batch_norm)
    if per_epoch == 0:
        return 0
    size = min(config.batch_size, num_samples)
    passes, rest = divmod(steps, per_epoch)
    return passes * min(per_epoch * size, num_samples) + rest * size


def batches(
    config: TrainingConfig, rows: Rows, steps: int, batch_norm: bool, seed: int, t: int, client_id: int
) -> Iterator[Rows]:
    """The row numbers of ``steps`` batches, pass after pass, each pass freshly shuffled.

    The stream depends on (seed, round, client) alone, so all methods see the same batches.
    """
    if steps == 0:
        return
    rng = numpy_generator(seed, "shuffle", t, client_id)
    per_epoch = steps_per_epoch(config, len(rows), batch_norm)
    size = min(config.batch_size, max(len(rows), 1))
    for step in range(steps):
        place = step % per_epoch
        if place == 0:
            order = rng.permutation(rows)
        yield order[place * size : (place + 1) * size]
