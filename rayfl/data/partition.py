"""Dividing samples over clients: reproducible, disjoint, bounded in time."""

import hashlib
import logging
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from rayfl.data import schemes
from rayfl.data.config import Kind, PartitionConfig, Scheme
from rayfl.data.sampling import Floats, Ints, even, permutation
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator
from rayfl.suggest import unknown

log = logging.getLogger("rayfl.data")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Who holds what, in numbers."""

    counts: Ints
    """Samples per client and class [n, K]."""
    sizes: Ints
    """Samples per client [n]."""
    size_cv: float
    """Standard deviation of the sizes over their mean."""
    classes_held: float
    """Mean number of classes a client holds."""
    top_share: float
    """Mean share of a client's most frequent class."""
    total_variation: float
    """Mean total-variation distance of a client's class shares to those of all clients together, 0 to 1."""

    def line(self) -> str:
        """One line for logs and captions."""
        return (
            f"{len(self.sizes)} clients, {int(self.sizes.min())} to {int(self.sizes.max())} samples "
            f"(CV {self.size_cv:.2f}), {self.classes_held:.1f} classes each, top class {self.top_share:.0%}, "
            f"TV to all {self.total_variation:.2f}"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows per client."""

    indices: tuple[Ints, ...]
    """Per client: its rows, ascending, int64; no row belongs to two clients."""
    hash: str
    """16 hex digits of the SHA-256 of the rows, client by client."""
    tries: int
    """Draws it took."""

    @classmethod
    def of(cls, rows: Sequence[npt.ArrayLike], tries: int = 1) -> "Partition":
        """The partition of these rows per client, sorted and hashed."""
        indices = tuple(np.sort(np.asarray(r, dtype=np.int64)) for r in rows)
        digest = hashlib.sha256()
        for r in indices:
            r.flags.writeable = False
            digest.update(len(r).to_bytes(8, "little"))
            digest.update(r.astype("<i8").tobytes())
        return cls(indices, digest.hexdigest()[:16], tries)

    def statistics(self, labels: npt.ArrayLike, num_classes: int) -> Statistics:
        """Numbers to print and to compare; ``labels`` [N] are those that the rows point into.

        Means over classes are taken over clients that hold something.
        """
        labels = np.asarray(labels)
        counts = np.stack([np.bincount(labels[r], minlength=num_classes) for r in self.indices]).astype(
            np.int64
        )
        sizes = counts.sum(axis=1)
        if not sizes.any():
            return Statistics(counts, sizes, 0.0, 0.0, 0.0, 0.0)
        held = counts[sizes > 0]
        mix = held / held.sum(axis=1, keepdims=True)
        prior = counts.sum(axis=0) / sizes.sum()
        return Statistics(
            counts=counts,
            sizes=sizes,
            size_cv=float(sizes.std() / sizes.mean()),
            classes_held=float((held > 0).sum(axis=1).mean()),
            top_share=float(mix.max(axis=1).mean()),
            total_variation=float(np.abs(mix - prior).sum(axis=1).mean() / 2),
        )


def partition(
    labels: npt.ArrayLike, num_classes: int, config: PartitionConfig, num_clients: int, seed: int
) -> Partition:
    """Divide the rows of ``labels`` [N] over ``num_clients``; a pure function of its arguments.

    Every row goes to exactly one client; the exceptions are classes that nobody holds under
    ``pathological`` and rows that a ``file`` leaves out. Raises UserError where the request can't be met.
    """
    labels = np.asarray(labels, dtype=np.int64)
    _check(labels, num_classes, config, num_clients)
    rng = numpy_generator(seed, "partition")
    total = len(labels)
    if config.kind == "file":
        return _from_file(config, labels, num_clients)
    if config.kind == "iid":
        return Partition.of(_deal(permutation(rng, total), even(total, num_clients)))
    if config.kind == "shards":
        rows = schemes.shards(rng, labels, num_clients, config.shards_per_client)
        return _at_least(Partition.of(rows), config)
    class_sizes = np.bincount(labels, minlength=num_classes).astype(np.int64)
    if config.kind == "pathological":
        counts = schemes.pathological(rng, class_sizes, num_clients, config.classes_per_client)
        return _at_least(Partition.of(_assign(rng, labels, counts)), config)
    counts, tries = schemes.until_large(
        _law(rng, class_sizes, config, num_clients), config.min_size, config.max_tries
    )
    smallest = int(counts.sum(axis=1).min())
    if smallest < config.min_size:
        if config.on_small == "error":
            raise UserError(
                f"no draw out of {tries} gave each of num_clients={num_clients} "
                f"min_size={config.min_size} of {total} "
                f"samples under {_named(config)} (best smallest client: {smallest}): set "
                f"partition.on_small=repair, "
                f"a smaller partition.min_size or num_clients, or a less skewed law"
            )
        log.info("%s: smallest client %d, repaired to %d", _named(config), smallest, config.min_size)
        counts = schemes.repair(counts, config.min_size)
    if config.kind == "quantity":
        return Partition.of(_deal(permutation(rng, total), counts[:, 0]), tries)
    return Partition.of(_assign(rng, labels, counts), tries)


def _law(
    rng: np.random.Generator, class_sizes: Ints, config: PartitionConfig, num_clients: int
) -> Callable[[], Ints]:
    """The draw of counts [n, K] (or sizes [n, 1]) that is repeated until nobody is too small."""
    total, alpha = int(class_sizes.sum()), config.alpha
    if config.kind == "quantity":
        if config.quantity_law == "lognormal":
            return lambda: schemes.quantity_lognormal(rng, total, num_clients, config.sigma)[:, None]
        return lambda: schemes.quantity_dirichlet(rng, total, num_clients, alpha)[:, None]
    if config.scheme in ("niid_bench", "per_class"):
        balance = config.scheme == "niid_bench"
        return lambda: schemes.per_class(rng, class_sizes, num_clients, alpha, balance)
    concentration: Floats = np.full(len(class_sizes), alpha)
    if config.scheme == "hsu":
        log.warning(
            "partition scheme hsu: alpha=%g there is alpha=%g under per_client (%d classes)",
            alpha,
            alpha / len(class_sizes),
            len(class_sizes),
        )
        concentration = alpha * class_sizes / total
    return lambda: schemes.per_client(rng, class_sizes, num_clients, concentration)


def _deal(order: Ints, sizes: Ints) -> list[Ints]:
    """Consecutive runs of ``order``, one of each size."""
    return np.split(order, np.cumsum(sizes)[:-1])


def _assign(rng: np.random.Generator, labels: Ints, counts: Ints) -> list[Ints]:
    """Rows per client that meet ``counts`` [n, K], each class shuffled before it is cut."""
    # The shuffle is global and the sort stable, so a class's rows come out in random order.
    order = permutation(rng, len(labels))
    by_class = _deal(
        order[np.argsort(labels[order], kind="stable")], np.bincount(labels, minlength=counts.shape[1])
    )
    pieces = [_deal(rows[: c.sum()], c) for rows, c in zip(by_class, counts.T, strict=True)]
    return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


def _named(config: PartitionConfig) -> str:
    """The law as an error message names it."""
    if config.kind == "dirichlet":
        return f"dirichlet scheme={config.scheme} alpha={config.alpha:g}"
    if config.kind == "quantity":
        law = config.quantity_law
        return f"quantity {law} " + (
            f"alpha={config.alpha:g}" if law == "dirichlet" else f"sigma={config.sigma:g}"
        )
    return config.kind


def _check(labels: Ints, num_classes: int, config: PartitionConfig, num_clients: int) -> None:
    """Refuse at once what no draw could meet."""
    total = len(labels)
    if config.kind not in get_args(Kind):
        raise unknown("partition.kind", config.kind, get_args(Kind))
    if config.scheme not in get_args(Scheme):
        raise unknown("partition.scheme", config.scheme, get_args(Scheme))
    if config.quantity_law not in ("dirichlet", "lognormal"):
        raise unknown("partition.quantity_law", config.quantity_law, ("dirichlet", "lognormal"))
    if config.on_small not in ("error", "repair"):
        raise unknown("partition.on_small", config.on_small, ("error", "repair"))
    if not (math.isfinite(config.alpha) and config.alpha > 0):
        raise UserError(
            f"partition.alpha must be a finite number above 0, got {config.alpha}: 0.1 to 1 is usual"
        )
    if not (math.isfinite(config.sigma) and config.sigma >= 0):
        raise UserError(f"partition.sigma must be a finite number from 0 up, got {config.sigma}: 1 is usual")
    lowest = {"min_size": 0, "max_tries": 1, "shards_per_client": 1, "classes_per_client": 1}
    for name, bound in lowest.items():
        if getattr(config, name) < bound:
            raise UserError(
                f"partition.{name} must be at least {bound}, got {getattr(config, name)}: raise it"
            )
    if num_clients < 1:
        raise UserError(f"num_clients must be at least 1, got {num_clients}: raise it")
    if total and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UserError(
            f"labels must lie in 0..{num_classes - 1}, got {labels.min()}..{labels.max()}: fix the dataset"
        )
    if config.kind == "file":
        return
    if num_clients > total:
        raise UserError(
            f"num_clients={num_clients} is more than the {total} training samples: lower num_clients"
        )
    if config.min_size * num_clients > total:
        raise UserError(
            f"num_clients={num_clients} with min_size={config.min_size} need "
            f"{config.min_size * num_clients} training "
            f"samples, there are {total}: lower num_clients or partition.min_size"
        )
    if config.kind == "shards" and config.shards_per_client * num_clients > total:
        raise UserError(
            f"num_clients={num_clients} with shards_per_client={config.shards_per_client} need at least "
            f"one sample a "
            f"shard, there are {total}: lower either"
        )
    if config.kind == "pathological" and config.classes_per_client > num_classes:
        raise UserError(
            f"partition.classes_per_client={config.classes_per_client} is more than the {num_classes} "
            f"classes: lower it"
        )


def _at_least(result: Partition, config: PartitionConfig) -> Partition:
    """The partition, refused where a law that isn't drawn again left a client below ``min_size``."""
    smallest = min(map(len, result.indices))
    if smallest < config.min_size:
        raise UserError(
            f"{config.kind} over num_clients={len(result.indices)} leaves a client with {smallest} samples, "
            f"min_size={config.min_size} was wanted: lower num_clients or partition.min_size"
        )
    return result


def save_partition(p: Partition, path: str | os.PathLike[str], labels: Ints) -> None:
    """Write ``p`` as ``.npz``: ``rows`` (client after client), ``sizes``, ``tries``, and the fingerprint of
    the training set's ``labels``, so that it is never taken for another dataset's; no pickle inside."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    with partial.open("wb") as f:
        np.savez_compressed(
            f,
            rows=np.concatenate(p.indices),
            sizes=np.array([len(r) for r in p.indices]),
            tries=np.array(p.tries),
            dataset=np.array(_fingerprint(labels)),
        )
    partial.replace(target)


def load_partition(path: str | os.PathLike[str]) -> Partition:
    """Read what :func:`save_partition` wrote; UserError where it is missing, damaged or has a row twice."""
    try:
        with open(path, "rb") as f, np.load(f, allow_pickle=False) as stored:
            rows, sizes, tries = (
                stored["rows"].astype(np.int64),
                stored["sizes"].astype(np.int64),
                stored["tries"],
            )
    except FileNotFoundError:
        raise UserError(f"partition file {path} isn't there: write one with save_partition") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as e:
        raise UserError(
            f"partition file {path} can't be read ({e}): write it again with save_partition"
        ) from e
    if sizes.sum() != len(rows) or (sizes < 0).any() or len(np.unique(rows)) != len(rows):
        raise UserError(
            f"partition file {path} gives a row twice or not at all: write it again with save_partition"
        )
    return Partition.of(_deal(rows, sizes), int(tries))


def _fingerprint(labels: Ints) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()[:16]


def _from_file(config: PartitionConfig, labels: Ints, num_clients: int) -> Partition:
    """The stored partition, refused where it doesn't fit the dataset; its sizes are taken as they are."""
    if config.path is None:
        raise UserError("data.partition.kind=file needs a file, got none: set data.partition.path=<file>.npz")
    total = len(labels)
    p = load_partition(config.path)
    if config.file_hash is not None and p.hash != config.file_hash:
        raise UserError(
            f"partition file {config.path} holds {p.hash}, this experiment was set up with "
            f"{config.file_hash}: bring the old file back, or load the config anew"
        )
    with np.load(config.path, allow_pickle=False) as stored:
        if "dataset" in stored and str(stored["dataset"]) != _fingerprint(labels):
            raise UserError(
                f"partition file {config.path} was made for another training set than this one of {total} "
                f"samples: use the dataset it was made for"
            )
    if len(p.indices) != num_clients:
        raise UserError(
            f"partition file {config.path} has {len(p.indices)} clients, num_clients={num_clients} was "
            f"asked: "
            f"set data.num_clients={len(p.indices)}"
        )
    rows = np.concatenate(p.indices)
    if rows.size and not (rows.min() >= 0 and rows.max() < total):
        raise UserError(
            f"partition file {config.path} names row "
            f"{rows.max() if rows.max() >= total else rows.min()}, the training "
            f"set has {total}: use the dataset it was made for"
        )
    if config.min_size > 0 and min(map(len, p.indices)) == 0:
        raise UserError(
            f"partition file {config.path} has empty clients: set partition.min_size=0 to allow them"
        )
    return p
