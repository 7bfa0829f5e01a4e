"""Datasets on disk: prepared once into Arrow IPC files, memory-mapped by every process that reads them.

``<root>/<name>[-<hash of options>]/`` holds ``train.arrow``, ``test.arrow`` and ``meta.json``. The folder
appears by one rename, under a lock, so whoever finds it finds it whole; a copy that is damaged later is
noticed and prepared again.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from filelock import FileLock
from torch import Tensor

from rayfl.data.config import DataConfig
from rayfl.data.datasets import DATASETS, Built, DatasetInfo, Split
from rayfl.data.sampling import Ints
from rayfl.errors import UserError
from rayfl.suggest import unknown

log = logging.getLogger("rayfl.data")

FORMAT = 1
"""Of the files below; a copy in another format is prepared again."""


class Dataset:
    """One split, read-only and memory-mapped: a process pays for the pages it touches, and pages are shared.

    Pickles as its path; opened again at most once per process.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` (``train.arrow`` or ``test.arrow`` beside its ``meta.json``)."""
        try:
            meta = json.loads((path.parent / "meta.json").read_text())
            table = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        except FileNotFoundError as e:
            raise UserError(
                f"prepared dataset {path} isn't on this machine: set data.root to a folder that all "
                f"machines share"
            ) from e
        self.path = path
        self.name: str = meta["name"]
        self.num_classes: int = meta["num_classes"]
        channels, height, width = meta["shape"]
        self.shape: tuple[int, int, int] = (channels, height, width)
        self.mean: tuple[float, ...] = tuple(meta["mean"])
        """Per channel, of the training images scaled to 0..1."""
        self.std: tuple[float, ...] = tuple(meta["std"])
        """Per channel, likewise."""
        rows = table.num_rows
        self.images: npt.NDArray[np.uint8] = _mapped(table.column("image"), np.uint8, (rows, *self.shape))
        """[N, C, H, W]"""
        self.labels: Ints = _mapped(table.column("label"), np.int64, (rows,))
        """[N]"""
        self.domains: Ints | None = None
        """[N] where the set has domains."""
        if "domain" in table.schema.names:
            self.domains = _mapped(table.column("domain"), np.int64, (rows,))
        self._scales: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}/{self.path.stem}, {len(self)} x {self.shape}, {self.num_classes} classes)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path),)

    def batch(
        self,
        indices: npt.ArrayLike | Tensor | Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> tuple[Tensor, Tensor]:
        """Normalised images [B, C, H, W] of ``dtype`` and labels [B] int64; new, so free to be written."""
        rows = np.asarray(indices, dtype=np.int64)
        device = torch.device(device)
        mean, std = self._scale(dtype, device)
        # Bytes are what is gathered and sent; the cast happens where the images will be used.
        images = torch.from_numpy(self.images[rows]).to(device).to(dtype)
        return images.sub_(mean).div_(std), torch.from_numpy(self.labels[rows]).to(device)

    def _scale(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """255 times mean and std, [C, 1, 1]: bytes are normalised without being scaled to 0..1 first."""
        found = self._scales.get((dtype, device))
        if found is None:
            mean, std = (
                (torch.tensor(values, dtype=torch.float64) * 255).to(device, dtype)[:, None, None]
                for values in (self.mean, self.std)
            )
            found = self._scales[dtype, device] = mean, std
        return found


def _mapped(column: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A whole Arrow column without nulls as a read-only array [N, ...] on the same memory.

    Not by ``to_numpy``, whose first call imports pandas: 0.4 s in every process.
    """
    return np.frombuffer(column.buffers()[-1], dtype=dtype, count=math.prod(shape)).reshape(shape)


@cache
def _reopen(path: str) -> Dataset:
    return Dataset(Path(path))


def open_dataset(config: DataConfig) -> tuple[Dataset, Dataset]:
    """The train and test split that ``config`` names, prepared first where they aren't yet.

    Fast when called again: opened datasets are kept per process. Raises UserError for an unknown name, data
    that can't be had (offline), or a folder that can't be written.
    """
    root = Path(config.root or os.environ.get("RAYFL_DATA") or "~/.cache/rayfl").expanduser().absolute()
    # Whatever doesn't change the content stays out of the key.
    return _open(DataConfig(name=config.name, root=str(root), synthetic=config.synthetic))


@cache
def _open(config: DataConfig) -> tuple[Dataset, Dataset]:
    info = DATASETS.get(config.name)
    if info is None:
        raise unknown("dataset", config.name, DATASETS)
    assert config.root is not None
    options = dict(info.options(config))
    name = config.name
    if options:
        name += "-" + hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(config.root) / name
    if _damage(folder, info) is not None:
        _prepare(folder, info, config, options)
    return _reopen(str(folder / "train.arrow")), _reopen(str(folder / "test.arrow"))


def _prepare(folder: Path, info: DatasetInfo, config: DataConfig, options: dict[str, Any]) -> None:
    """Make ``folder``, once, however many processes ask at a time."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            damage = _damage(folder, info)
            if damage is None:
                return
            if folder.exists():
                log.warning("prepared dataset %s %s: preparing it again", folder, damage)
            # A killed process may have left some; under the lock nobody else is writing there.
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            built = _build(info, config)
            _write(partial, built, config.name, info, options)
            if folder.exists():
                old = folder.with_name(f".{folder.name}.damaged")
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
                partial.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                partial.rename(folder)
    except OSError as e:
        raise UserError(
            f"dataset '{config.name}' can't be written to {folder.parent} ({e}): set data.root to a "
            f"folder with room"
        ) from e


def _build(info: DatasetInfo, config: DataConfig) -> Built:
    try:
        return info.build(config)
    except (OSError, ImportError, MemoryError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise UserError(f"dataset '{config.name}' can't be prepared ({reason}): {info.remedy}") from e


def _write(folder: Path, built: Built, name: str, info: DatasetInfo, options: dict[str, Any]) -> None:
    mean, std = _moments(built.train.images)
    meta = {
        "format": FORMAT,
        "version": info.version,
        "name": name,
        "options": options,
        "num_classes": built.num_classes,
        "shape": built.train.images.shape[1:],
        "mean": mean,
        "std": std,
        "splits": {
            "train": _write_split(folder / "train.arrow", built.train),
            "test": _write_split(folder / "test.arrow", built.test),
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def _write_split(path: Path, split: Split) -> dict[str, int]:
    """Write one record batch, so that each column maps to one array; returns what proves the file whole."""
    shape = split.images.shape[1:]
    flat = pa.array(np.ascontiguousarray(split.images).reshape(-1))
    images = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(shape)))
    columns = {
        "image": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), images),
        "label": pa.array(split.labels.astype(np.int64)),
    }
    if split.domains is not None:
        columns["domain"] = pa.array(split.domains.astype(np.int64))
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    status = path.stat()
    return {
        "rows": len(split.labels),
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "crc32": _checksum(path),
    }


def _damage(folder: Path, info: DatasetInfo) -> str | None:
    """What is wrong with a prepared copy, or None.

    A file whose size and time are as they were written is trusted, as git does; only another (copied,
    overwritten) is read through for its checksum.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != FORMAT or meta["version"] != info.version:
            return "is from another version"
        for split, written in meta["splits"].items():
            path = folder / f"{split}.arrow"
            status = path.stat()
            if status.st_size != written["bytes"]:
                return f"has {status.st_size} bytes of {written['bytes']} in {path.name}"
            if status.st_mtime_ns != written["mtime_ns"] and _checksum(path) != written["crc32"]:
                return f"has a wrong checksum in {path.name}"
        if set(meta["splits"]) != {"train", "test"}:
            return "lacks a split"
    except (FileNotFoundError, NotADirectoryError) as e:
        return f"lacks {Path(e.filename).name}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "has an unreadable meta.json"
    return None


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _moments(images: npt.NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Mean and deviation per channel of [N, C, H, W] scaled to 0..1, from exact counts of byte values."""
    means, deviations = [], []
    values = np.arange(256) / 255
    for c in range(images.shape[1]):
        weights = np.bincount(images[:, c].reshape(-1), minlength=256)
        mean = float((weights * values).sum() / weights.sum())
        variance = float((weights * (values - mean) ** 2).sum() / weights.sum())
        means.append(mean)
        # A channel of one value can't be scaled; it is only centred.
        deviations.append(variance**0.5 if np.count_nonzero(weights) > 1 else 1.0)
    return means, deviations
