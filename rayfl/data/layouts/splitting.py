"""Which samples train and which test."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.info import Files
from rayfl.data.sampling import Ints, stratified
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator
from rayfl.suggest import unknown

Mask = npt.NDArray[np.bool_]

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What splits are called -> which one is meant."""


def held_out(labels: Ints, purpose: str, groups: Ints | None = None, share: float = 0.2) -> Mask:
    """Test rows, bool [N]: a share of each class, by nothing but ``purpose``.

    With ``groups`` [N], whole groups, so that none is on both sides; a group counts as of its first row's
    class.
    """
    unit = np.arange(len(labels)) if groups is None else groups
    _, first, unit = np.unique(unit, return_index=True, return_inverse=True)
    chosen = np.zeros(len(first), dtype=bool)
    chosen[stratified(numpy_generator(0, purpose), labels[first], round(share * len(first)))] = True
    for k in np.unique(labels[first][chosen]):
        mine = np.flatnonzero(labels[first] == k)
        # Something of each class must be left to learn from.
        chosen[mine[0]] &= not chosen[mine].all()
    return chosen[unit]


def split_of(name: str) -> str:
    """Which split is meant. Raises UserError for a name that means none."""
    split = SPLITS.get(name.lower())
    if split is None:
        raise unknown("split", name, SPLITS)
    return split


def official_test(splits: Sequence[str]) -> Mask | None:
    """Test rows, bool [N], by each row's split, a value of ``SPLITS``; None where all are for training.

    Rows for validation are the test split where there is no other, else they are trained on: validation
    rows are held out of the training split anyway, the same way for all datasets.
    """
    given = np.array(splits)
    for split in ("test", "val"):
        if split in splits:
            return np.asarray(given == split)
    return None


def divide(samples: Files, test: Mask) -> tuple[Files, Files]:
    """All samples of a set into train and test."""

    def rows(chosen: Mask) -> Files:
        places = np.flatnonzero(chosen)
        per_row: dict[str, Any] = {}
        for field in ("names", "mask_names"):
            values = getattr(samples, field)
            per_row[field] = None if values is None else [values[i] for i in places]
        for field in ("labels", "domains", "groups"):
            values = getattr(samples, field)
            per_row[field] = None if values is None else values[places]
        return dataclasses.replace(samples, **per_row)

    return rows(~test), rows(test)


def require_training(labels: Ints, class_names: Sequence[str], where: object) -> None:
    """Raise UserError where a class has no training sample, or there are none at all."""
    counts = np.bincount(labels, minlength=len(class_names))
    if not len(class_names) or not counts.all():
        which = f"class '{class_names[int(counts.argmin())]}'" if len(class_names) else "the set"
        raise UserError(f"{which} has no training images in {where}: add some, or remove the class")
