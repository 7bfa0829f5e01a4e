"""Seeing to it that nobody gets too little: drawing again, then moving samples."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from rayfl.data.config import PartitionConfig
from rayfl.data.sampling import Ints
from rayfl.data.schemes import named
from rayfl.errors import UserError

Draw = TypeVar("Draw")


def until_large(
    draw: Callable[[], Draw], sizes: Callable[[Draw], Ints], min_size: int, max_tries: int
) -> tuple[Draw, int]:
    """The first draw whose ``sizes`` [n] all reach ``min_size``, or the least bad; the tries it took."""
    best, smallest, tries = draw(), -1, 0
    for tries in range(1, max_tries + 1):
        found = best if tries == 1 else draw()
        size = int(sizes(found).min())
        if size > smallest:
            best, smallest = found, size
        if size >= min_size:
            break
    return best, tries


def repair(counts: Ints, min_size: int) -> Ints:
    """Counts [n, K] that give each client ``min_size``: samples move one by one from the largest client.

    The giver gives of its most frequent class; ties go to the lowest number, so nothing is drawn.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for taker in np.flatnonzero(sizes < min_size):
        while sizes[taker] < min_size:
            giver = int(sizes.argmax())
            k = int(counts[giver].argmax())
            counts[giver, k] -= 1
            counts[taker, k] += 1
            sizes[giver] -= 1
            sizes[taker] += 1
    return counts


def too_small(
    law: PartitionConfig, num_clients: int, smallest: int, total: int, tries: int = 1, where: str = ""
) -> UserError:
    """The error for a client below ``min_size`` whom no draw and no repair helped."""
    remedy = "lower data.partition.min_size or data.num_clients"
    if law.kind in ("dirichlet", "quantity", "two_level"):
        remedy = f"set data.partition.on_small=repair, {remedy}, or take a less skewed law"
    return UserError(
        f"no draw out of {tries} gave each of {num_clients} clients{where} "
        f"data.partition.min_size={law.min_size} of {total} samples under {named(law)} "
        f"(best smallest client: {smallest}): {remedy}"
    )
