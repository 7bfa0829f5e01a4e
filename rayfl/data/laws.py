"""From a law that looks at labels alone to rows per client."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from rayfl.data import schemes
from rayfl.data.config import PartitionConfig
from rayfl.data.dirichlet import dirichlet, two_level
from rayfl.data.minimum import repair, too_small, until_large
from rayfl.data.sampling import Ints, even, permutation

log = logging.getLogger("rayfl.data")

Divided = tuple[list[Ints], int]
"""Rows per client, and the draws it took."""


def divide(
    rng: np.random.Generator,
    labels: Ints,
    num_classes: int,
    law: PartitionConfig,
    num_clients: int,
    members: Sequence[int] = (),
    where: str = "",
) -> Divided:
    """Rows of ``labels`` [N] per client.

    ``members`` [E] is how many clients each edge server has (two_level), ``where`` ends up in messages.
    """
    total = len(labels)
    if law.kind == "iid":
        return deal(permutation(rng, total), even(total, num_clients)), 1
    if law.kind == "shards":
        return _at_least(schemes.shards(rng, labels, num_clients, law.shards_per_client), law)
    class_sizes = np.bincount(labels, minlength=num_classes).astype(np.int64)
    if law.kind == "pathological":
        counts = schemes.pathological(rng, class_sizes, num_clients, law.classes_per_client)
        return _at_least(_assign(rng, labels, counts), law)
    if law.kind == "dominant":
        counts = schemes.dominant(rng, class_sizes, num_clients, law.dominant_ratio)
        return _assign(rng, labels, counts), 1
    draw = _draw(rng, class_sizes, law, num_clients, members)
    counts, tries = until_large(draw, lambda c: c.sum(axis=1), law.min_size, law.max_tries)
    smallest = int(counts.sum(axis=1).min())
    if smallest < law.min_size:
        if law.on_small == "error":
            raise too_small(law, num_clients, smallest, total, tries, where)
        log.info("%s%s: smallest client %d, repaired to %d", law.kind, where, smallest, law.min_size)
        counts = repair(counts, law.min_size)
    if law.kind == "quantity":
        return deal(permutation(rng, total), counts[:, 0]), tries
    return _assign(rng, labels, counts), tries


def deal(order: Ints, sizes: Ints) -> list[Ints]:
    """Consecutive runs of ``order``, one of each size."""
    return np.split(order, np.cumsum(sizes)[:-1])


def _draw(
    rng: np.random.Generator,
    class_sizes: Ints,
    law: PartitionConfig,
    num_clients: int,
    members: Sequence[int],
) -> Callable[[], Ints]:
    """The draw of counts [n, K] (or sizes [n, 1]) that is repeated until nobody is too small."""
    total = int(class_sizes.sum())
    if law.kind == "quantity":
        if law.quantity_law == "lognormal":
            return lambda: schemes.quantity_lognormal(rng, total, num_clients, law.sigma)[:, None]
        return lambda: schemes.quantity_dirichlet(rng, total, num_clients, law.alpha)[:, None]
    if law.kind == "two_level":
        return lambda: two_level(rng, class_sizes, members, law.scheme, law.alpha_edge, law.alpha)
    return lambda: dirichlet(rng, class_sizes, num_clients, law.scheme, law.alpha)


def _assign(rng: np.random.Generator, labels: Ints, counts: Ints) -> list[Ints]:
    """Rows per client that meet ``counts`` [n, K], each class shuffled before it is cut."""
    # The shuffle is global and the sort stable, so a class's rows come out in random order.
    order = permutation(rng, len(labels))
    by_class = deal(
        order[np.argsort(labels[order], kind="stable")], np.bincount(labels, minlength=counts.shape[1])
    )
    pieces = [deal(rows[: c.sum()], c) for rows, c in zip(by_class, counts.T, strict=True)]
    return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


def _at_least(rows: list[Ints], law: PartitionConfig) -> Divided:
    """The rows, refused where a law that isn't drawn again left a client below ``min_size``."""
    smallest = min(map(len, rows))
    if smallest < law.min_size:
        raise too_small(law, len(rows), smallest, sum(map(len, rows)))
    return rows, 1
