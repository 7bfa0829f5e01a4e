"""A numpy archive of images and labels, as MedMNIST (Yang et al., 2023, https://medmnist.com) comes."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Split
from rayfl.data.layouts.splitting import held_out, require_training
from rayfl.errors import UserError

Arrays = dict[str, npt.NDArray[Any]]


def build_npz(config: DataConfig, source: Path | None) -> Built:
    """Validation images join the training images; without test images, a fifth of each class is held out."""
    assert source is not None
    path = _one(source)
    arrays = _load(path)
    parts = {
        name: _part(arrays, name, path) for name in ("train", "val", "test") if f"{name}_images" in arrays
    }
    if "train" not in parts:
        raise UserError(
            f"{path} lacks train_images and train_labels: it has {', '.join(arrays) or 'nothing'}"
        )
    if len({split.images.shape[1:] for split in parts.values()}) > 1:
        raise UserError(f"{path} has images of several sizes: make them one size")
    train = parts["train"]
    if "val" in parts:
        train = _joined(train, parts["val"])
    test = parts.get("test")
    if test is None:
        chosen = held_out(train.labels, "npz-split")
        train, test = (
            Split(images=train.images[rows], labels=train.labels[rows]) for rows in (~chosen, chosen)
        )
    num_classes = int(max(split.labels.max(initial=-1) for split in (train, test))) + 1
    class_names = tuple(map(str, range(num_classes)))
    require_training(train.labels, class_names, path)
    return Built(train=train, test=test, num_classes=num_classes, class_names=class_names)


def _one(source: Path) -> Path:
    """The file itself, or the only one in a folder."""
    if source.is_dir():
        found = sorted(source.glob("*.npz"))
        if len(found) != 1:
            raise FileNotFoundError(f"{source} has {len(found)} .npz files, not one: name the file itself")
        return found[0]
    return source


def _load(path: Path) -> Arrays:
    try:
        # Opened here: numpy leaves a file open that it can't read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise OSError(f"{path} is damaged or cut off ({e}); get it again") from e
    except (ValueError, AttributeError, TypeError) as e:
        raise UserError(f"{path} isn't an .npz file of plain arrays ({e}): save it with np.savez") from e


def _part(arrays: Arrays, name: str, path: Path) -> Split:
    images, labels = arrays[f"{name}_images"], arrays.get(f"{name}_labels")
    if labels is None or not len(labels) == len(images) > 0:
        count = "no" if labels is None else len(labels)
        raise UserError(f"{path} has {count} {name}_labels for {len(images)} {name}_images")
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise UserError(f"{path} has {labels.shape[1]} labels per image: only one per image can be learned")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise UserError(
            f"{path} has {name}_labels of {labels.dtype}, some maybe negative: number classes from 0"
        )
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise UserError(
            f"{path} has {name}_images {images.dtype} {list(images.shape)}: they must be uint8, [N, H, W] or "
            f"[N, H, W, 3]"
        )
    channels_first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return Split(images=channels_first, labels=labels.reshape(-1).astype(np.int64))


def _joined(one: Split, other: Split) -> Split:
    return Split(
        images=np.concatenate([one.images, other.images]),
        labels=np.concatenate([one.labels, other.labels]),
    )


DATASETS = {
    "npz": DatasetInfo(
        build=build_npz,
        description="your images in a numpy archive of train_images, train_labels, test_..., as MedMNIST's",
        remedy="save a .npz file (the source) with uint8 train_images [N, H, W] or [N, H, W, 3], integer "
        "train_labels [N], and the same of test (and val)",
        needs_source=True,
        licence="yours",
    ),
}
