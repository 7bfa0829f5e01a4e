"""A split of a prepared dataset, as training and evaluation read it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayfl.data import displacement, images
from rayfl.data.augment import Augment
from rayfl.data.columns import Columns, EncodedColumn
from rayfl.data.info import Task
from rayfl.data.sampling import Ints
from rayfl.errors import UserError

PHOTOGRAPH_SIZE = 224
"""The side that photographs, stored as they came, are resized to unless data.image_size says otherwise."""


class Dataset:
    """One split, read-only and memory-mapped: a process pays for the pages it touches, and pages are shared.

    Pickles as its path; opened again at most once per process.
    """

    def __init__(self, path: Path, image_size: int | None = None, moved: int = 0) -> None:
        """Open ``path`` (``train.arrow`` or ``test.arrow`` beside its ``meta.json``).

        Images are resized to squares of ``image_size`` when read; None leaves small ones as stored. Each is
        then ``moved`` by up to so many pixels each way, always in the same way.
        """
        try:
            meta = json.loads((path.parent / "meta.json").read_text(encoding="utf-8"))
            columns = Columns(path)
        except FileNotFoundError as e:
            raise UserError(
                f"prepared dataset {path} isn't on this machine: set data.root to a folder that all "
                f"machines share"
            ) from e
        self.path = path
        self.name: str = meta["name"]
        self.task: Task = meta["task"]
        self.num_classes: int = meta["num_classes"]
        self.class_names: tuple[str, ...] = tuple(meta["class_names"])
        self.domain_names: tuple[str, ...] = tuple(meta["domain_names"])
        self.non_benign: tuple[int, ...] = tuple(meta["non_benign"])
        """Classes that are dangerous to overlook."""
        self.mean: tuple[float, ...] = tuple(meta["mean"])
        """Per channel, of images scaled to 0..1."""
        self.std: tuple[float, ...] = tuple(meta["std"])
        """Per channel, likewise."""
        labels = columns.integers("label")
        assert labels is not None
        self.labels: Ints = labels
        """[N]; all 0 for segmentation."""
        self.domains = columns.integers("domain")
        """[N] where the set has domains."""
        self.groups = columns.integers("group")
        """[N] where the set has groups: the natural unit (patient, writer) that a sample belongs to."""
        self.images: npt.NDArray[np.uint8] | EncodedColumn = _pixels(columns, "image")
        """[N, C, H, W] as stored, or N encoded photographs."""
        self.masks = _pixels(columns, "mask") if "mask" in columns else None
        """[N, H, W] as stored, or N encoded masks (segmentation)."""
        self._image_size = image_size
        channels, height, width = meta["shape"]
        self.shape: tuple[int, int, int] = (channels, image_size or height, image_size or width)
        """(C, H, W) as batches have it."""
        self._most_moved = moved
        self._moves = displacement.offsets(path.stem, len(labels), moved) if moved else None
        self._scales: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    @property
    def encoded(self) -> bool:
        """Whether images are decoded when read."""
        return isinstance(self.images, EncodedColumn)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}/{self.path.stem}, {len(self)} x {self.shape}, {self.num_classes} classes)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (str(self.path), self._image_size, self._most_moved)

    def batch(
        self,
        indices: npt.ArrayLike | Tensor | Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        augment: Augment | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Normalised images [b, C, H, W] of ``dtype`` and their labels; new, so free to be written.

        Labels are [b] int64, or for segmentation masks [b, H, W] uint8. ``augment`` works on the bytes,
        after resizing; where it returns two views of each image, labels are repeated to match.
        """
        rows = np.asarray(indices, dtype=np.int64)
        device = torch.device(device)
        mean, std = self._scale(dtype, device)
        pixels, masks = self._read(rows)
        labels = torch.from_numpy(self.labels[rows])
        if augment is not None:
            pixels, masks = augment(pixels, masks)
            if len(pixels) > len(labels):
                labels = labels.repeat(len(pixels) // len(labels))
        # Bytes are what is gathered and sent; the cast happens where the images will be used.
        inputs = pixels.to(device).to(dtype).sub_(mean).div_(std)
        return inputs, (labels if masks is None else masks).to(device)

    def _read(self, rows: Ints) -> tuple[Tensor, Tensor | None]:
        masks = None
        size = self.shape[1:]
        if isinstance(self.images, EncodedColumn):
            pixels = images.decode_batch([self.images[row] for row in rows], size)
        else:
            pixels = images.resize(torch.from_numpy(self.images[rows]), size)
        if isinstance(self.masks, EncodedColumn):
            masks = images.decode_masks([self.masks[row] for row in rows], size)
        elif self.masks is not None:
            masks = images.resize_masks(torch.from_numpy(self.masks[rows]), size)
        if self._moves is not None:
            return displacement.displace(pixels, masks, self._moves[rows], self._most_moved)
        return pixels, masks

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


def _pixels(columns: Columns, name: str) -> npt.NDArray[np.uint8] | EncodedColumn:
    return columns.encoded(name) if columns.is_encoded(name) else columns.tensors(name)


@cache
def reopen(path: str, image_size: int | None, moved: int) -> Dataset:
    """The split at ``path``, opened once per process."""
    return Dataset(Path(path), image_size, moved)
