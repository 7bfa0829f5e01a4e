"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009, https://www.cs.toronto.edu/~kriz/cifar.html)."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Normalisation, Split
from rayfl.data.layouts.common import check_official, downloads, open_source, outline
from rayfl.data.layouts.source import Source
from rayfl.errors import UserError

ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""What pickled arrays are made with; plain containers, text and numbers need nothing."""


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays and plain values; a pickle that asks for anything else can't run it."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module, name)


def build_cifar(config: DataConfig, source: Path | None, official: Any, labels: str) -> Built:
    """Read the batches that torchvision's class ``official`` lists; ``labels`` is their key in a batch."""
    files = _fetch(config, source, official)

    md5s = dict(
        [*official.train_list, *official.test_list, (official.meta["filename"], official.meta["md5"])]
    )
    places = {name: files.need(f"{official.base_folder}/{name}", name) for name in md5s}
    check_official(files, {places[name]: md5 for name, md5 in md5s.items()})

    def load(name: str) -> dict[str, Any]:
        content = files.read(places[name])
        try:
            return dict(ArrayUnpickler(io.BytesIO(content), encoding="latin1").load())
        except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError, TypeError) as e:
            raise OSError(f"{places[name]} in {files.path} can't be read ({e}); get it again") from e

    meta = load(official.meta["filename"])
    class_names = tuple(map(str, meta[official.meta["key"]]))

    def split(parts: list[tuple[str, str]]) -> Split:
        batches = [load(name) for name, _ in parts]
        images = np.concatenate([np.asarray(batch["data"], dtype=np.uint8) for batch in batches])
        numbers = np.concatenate([np.asarray(batch[labels], dtype=np.int64) for batch in batches])
        if images.shape != (len(numbers), 3 * 32 * 32):
            raise UserError(f"{files.path}: {len(numbers)} labels for images of shape {images.shape}")
        if not ((numbers >= 0) & (numbers < len(class_names))).all():
            raise UserError(f"{files.path}: labels up to {numbers.max()} for {len(class_names)} classes")
        return Split(images=images.reshape(-1, 3, 32, 32), labels=numbers)

    return Built(
        train=split(official.train_list),
        test=split(official.test_list),
        num_classes=len(class_names),
        class_names=class_names,
    )


def _fetch(config: DataConfig, source: Path | None, official: Any) -> Source:
    """The user's files, or torchvision's download, which it verifies by checksum."""
    if source is None:
        try:
            official(downloads(config), download=True)
        except RuntimeError as e:
            raise OSError(str(e)) from e
    unpacked = ((source or downloads(config)) / official.base_folder).is_dir()
    return open_source(config, source, archives=() if unpacked else (official.filename,))


def _cifar10(config: DataConfig, source: Path | None) -> Built:
    from torchvision.datasets import CIFAR10

    return build_cifar(config, source, CIFAR10, "labels")


def _cifar100(config: DataConfig, source: Path | None) -> Built:
    from torchvision.datasets import CIFAR100

    return build_cifar(config, source, CIFAR100, "fine_labels")


def _remedy(archive: str, folder: str) -> str:
    return (
        f"get {archive} from https://www.cs.toronto.edu/~kriz/cifar.html (the source is that file, or the "
        f"folder {folder} in it)"
    )


DATASETS = {
    "cifar10": DatasetInfo(
        build=_cifar10,
        description="CIFAR-10, 50000 + 10000 colour photographs 3x32x32, 10 classes; downloaded",
        remedy=_remedy("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        outline=outline([5000] * 10, 10_000, side=32),
        normalisation=Normalisation(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        licence="none stated; cite Krizhevsky 2009",
    ),
    "cifar100": DatasetInfo(
        build=_cifar100,
        description="CIFAR-100, 50000 + 10000 colour photographs 3x32x32, 100 fine classes; downloaded",
        remedy=_remedy("cifar-100-python.tar.gz", "cifar-100-python"),
        outline=outline([500] * 100, 10_000, side=32),
        normalisation=Normalisation(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
        licence="none stated; cite Krizhevsky 2009",
    ),
}
