"""Partitions in files: written once, taken for the dataset they were made for and no other."""

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.config import PartitionConfig
from rayfl.data.partition import Partition
from rayfl.data.sampling import Ints
from rayfl.errors import UserError

AGAIN = "write it again with rayfl partition --save"


def save_partition(p: Partition, path: str | os.PathLike[str], labels: Ints) -> None:
    """Write ``p`` as ``.npz``: ``rows`` (client after client), ``sizes``, ``tries``, ``edges`` where the map
    is not blocks, and the fingerprint of the training set's ``labels``, so that it is never taken for
    another dataset's; no pickle inside."""
    arrays: dict[str, Any] = {
        "rows": np.concatenate(p.indices),
        "sizes": np.array([len(r) for r in p.indices]),
        "tries": np.array(p.tries),
        "dataset": np.array(_fingerprint(labels)),
    }
    if p.edges is not None:
        arrays["edges"] = np.array(p.edges, dtype=np.int64)
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    with partial.open("wb") as f:
        np.savez_compressed(f, **arrays)
    partial.replace(target)


def load_partition(path: str | os.PathLike[str]) -> Partition:
    """Read what :func:`save_partition` wrote; UserError where it is missing, damaged or has a row twice."""
    return _read(path)[0]


def _read(path: str | os.PathLike[str]) -> tuple[Partition, str | None]:
    """The partition and the fingerprint of the dataset that it was made for."""
    edges, dataset = None, None
    try:
        with open(path, "rb") as f, np.load(f, allow_pickle=False) as stored:
            rows = stored["rows"].astype(np.int64)
            sizes = stored["sizes"].astype(np.int64)
            tries = int(stored["tries"])
            if "edges" in stored:
                edges = stored["edges"].astype(np.int64)
            if "dataset" in stored:
                dataset = str(stored["dataset"])
    except FileNotFoundError:
        raise UserError(f"partition file {path} isn't there: write one with rayfl partition --save") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as e:
        raise UserError(f"partition file {path} can't be read ({e}): {AGAIN}") from e
    if rows.ndim != 1 or sizes.ndim != 1 or sizes.sum() != len(rows) or (sizes < 0).any():
        raise UserError(f"partition file {path} has rows and sizes that don't fit: {AGAIN}")
    if len(np.unique(rows)) != len(rows):
        raise UserError(f"partition file {path} gives a row twice: {AGAIN}")
    if edges is not None and (edges.shape != sizes.shape or (edges < 0).any()):
        raise UserError(f"partition file {path} has an edge map that doesn't fit its clients: {AGAIN}")
    held = np.split(rows, np.cumsum(sizes)[:-1])
    return Partition.of(held, tries, None if edges is None else edges.tolist()), dataset


def _fingerprint(labels: Ints) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()[:16]


def from_file(config: PartitionConfig, labels: Ints, num_clients: int, num_edges: int) -> Partition:
    """The stored partition, refused where it doesn't fit the request; its sizes are taken as they are."""
    path, total = config.path, len(labels)
    if path is None:
        raise UserError("data.partition.kind=file needs a file, got none: set data.partition.path=<file>.npz")
    p, dataset = _read(path)
    if config.file_hash is not None and p.hash != config.file_hash:
        raise UserError(
            f"partition file {path} holds {p.hash}, this experiment was set up with "
            f"{config.file_hash}: bring the old file back, or load the config anew"
        )
    if dataset is not None and dataset != _fingerprint(labels):
        raise UserError(
            f"partition file {path} was made for another training set than this one of {total} samples: "
            f"use the dataset it was made for"
        )
    if len(p.indices) != num_clients:
        raise UserError(
            f"partition file {path} has {len(p.indices)} clients, data.num_clients={num_clients} was "
            f"asked: set data.num_clients={len(p.indices)}"
        )
    rows = np.concatenate(p.indices)
    if rows.size and not (rows.min() >= 0 and rows.max() < total):
        raise UserError(
            f"partition file {path} names row {rows.max() if rows.max() >= total else rows.min()}, the "
            f"training set has {total}: use the dataset it was made for"
        )
    if config.min_size > 0 and min(map(len, p.indices)) == 0:
        raise UserError(
            f"partition file {path} has empty clients: set data.partition.min_size=0 to allow them"
        )
    if p.edges is not None:
        used = max(p.edges) + 1
        if used > num_edges or used < num_edges <= num_clients:
            raise UserError(
                f"partition file {path} gives its clients to {used} edge servers, "
                f"data.num_edges={num_edges} was asked: set data.num_edges={used}"
            )
    return p
