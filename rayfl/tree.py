"""Arithmetic on weights (name -> tensor), with one fixed order of summation.

Float sums depend on their order, so the order is part of the definition: ids are cut into 16 contiguous
blocks; float64 terms ``mass * weights`` are added in ascending id inside a block, then the blocks in order.
Whoever holds a whole block may send its sum; the result has the same bits.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rayfl.messages import PooledUpdate, Update, Weights, weigh

NUM_BLOCKS = 16


def block_of(index: int, num_ids: int) -> int:
    """The block of summation that id ``index`` of ``num_ids`` belongs to."""
    return index * NUM_BLOCKS // num_ids


def clone(weights: Weights) -> dict[str, Tensor]:
    """A writable copy, without graph."""
    return {name: value.detach().clone() for name, value in weights.items()}


def squared_distance(parameters: Iterable[tuple[str, Tensor]], reference: Weights) -> Tensor:
    """The squared Euclidean distance of named parameters to a fixed reference: a scalar with a graph."""
    terms = [(value - reference[name]).square().sum() for name, value in parameters]
    return torch.stack(terms).sum()


def sha256(weights: Weights) -> str:
    """A fingerprint of names, shapes, dtypes and every bit of the values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class BlockSum:
    """The running sum of one block. A block of a single update passes it on unchanged."""

    def __init__(self) -> None:
        self._single: Update | None = None
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._mass = 0.0
        self._wire_bytes: Counter[str] = Counter()

    def add(self, update: Update) -> None:
        """Add the update of the next higher id."""
        self._wire_bytes += weigh(update)
        if self._single is None and not self._sums:
            self._single = update
            return
        if self._single is not None:
            first, self._single = self._single, None
            self._add(first)
        self._add(update)

    def _add(self, update: Update) -> None:
        self._mass += update.mass
        for name, value in update.weights.items():
            self._dtypes[name] = value.dtype
            if not value.is_floating_point():
                held = self._sums.get(name)
                self._sums[name] = value.clone() if held is None else torch.maximum(held, value)
            elif name in self._sums:
                self._sums[name].add_(value.double() * update.mass)
            else:
                self._sums[name] = value.double() * update.mass

    def result(self) -> Update | PooledUpdate:
        """What the block sends: the lone update itself or the float64 sums."""
        if self._single is not None:
            return self._single
        return PooledUpdate(self._sums, self._dtypes, self._mass, self._wire_bytes)


def pool(updates: Mapping[int, Update], num_ids: int) -> dict[int, Update | PooledUpdate]:
    """Sum whole blocks: first id of a block -> what stands for all its members."""
    sums: dict[int, tuple[int, BlockSum]] = {}
    for index in sorted(updates):
        _, block = sums.setdefault(block_of(index, num_ids), (index, BlockSum()))
        block.add(updates[index])
    return {first: block.result() for first, block in sums.values()}


def weighted_mean(updates: Mapping[int, Update | PooledUpdate], num_ids: int) -> Update | None:
    """The average of updates keyed by id, weighted by mass and normalised over those present.

    Without mass nothing counts. Floating entries are averaged in float64 and cast back, integer entries
    (batch counters) take the maximum. One update comes back bit for bit; of none there is no average: None.

    Source: McMahan et al. 2017 (FedAvg), Algorithm 1, weights normalised over participants.
    """
    singles = {i: value for i, value in updates.items() if isinstance(value, Update) and value.mass > 0}
    pooled = {index: value for index, value in updates.items() if isinstance(value, PooledUpdate)}
    if not pooled and len(singles) == 1:
        return next(iter(singles.values()))
    blocks = {**pool(singles, num_ids), **pooled}
    if not blocks:
        return None
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    mass = 0.0
    for index in sorted(blocks):
        block = _as_sums(blocks[index])
        mass += block.mass
        dtypes.update(block.dtypes)
        for name, value in block.sums.items():
            if name not in total:
                total[name] = value.clone()
            elif dtypes[name].is_floating_point:
                total[name].add_(value)
            else:
                total[name] = torch.maximum(total[name], value)
    mean = {
        name: (value / mass).to(dtypes[name]) if dtypes[name].is_floating_point else value
        for name, value in total.items()
    }
    return Update(mean, mass)


def _as_sums(block: Update | PooledUpdate) -> PooledUpdate:
    if isinstance(block, PooledUpdate):
        return block
    alone = BlockSum()
    alone._add(block)
    result = alone.result()
    assert isinstance(result, PooledUpdate)
    return result
