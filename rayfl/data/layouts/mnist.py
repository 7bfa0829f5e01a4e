"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017, https://arxiv.org/abs/1708.07747)."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Normalisation, Outline, Split
from rayfl.data.layouts.common import check_official, downloads, open_source
from rayfl.data.layouts.source import Source
from rayfl.errors import UserError

FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(name: str, content: bytes) -> npt.NDArray[np.uint8]:
    """An array of bytes in idx format: two zeros, type 8, the number of dimensions, each as 4 bytes, values.

    Raises OSError where the content isn't that or is cut off.
    """
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    shape = [int(size) for size in np.frombuffer(content[4:start], dtype=">u4")]
    if not dimensions or len(shape) != dimensions or len(content) - start != math.prod(shape):
        raise OSError(f"{name} isn't a whole idx file of bytes ({len(content)} bytes); get it again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def build_mnist(
    config: DataConfig, source: Path | None, official: Any, class_names: tuple[str, ...]
) -> Built:
    """Read the four idx files that torchvision's class ``official`` lists, packed by gzip or not."""
    if source is None:
        try:
            official(downloads(config), download=True)
        except RuntimeError as e:
            raise OSError(str(e).replace("\n", " ")) from e
    files = open_source(config, source)
    places = [_place(files, packed) for packed, _ in official.resources]
    md5s = [md5 for _, md5 in official.resources]
    # Checksums are known of the packed files alone.
    check_official(files, {p: md5 for p, md5 in zip(places, md5s, strict=True) if p.endswith(".gz")})
    arrays = [_array(files, place) for place in places]
    train, test = (_split(files, arrays[i], arrays[i + 1], len(class_names)) for i in (0, 2))
    return Built(train=train, test=test, num_classes=len(class_names), class_names=class_names)


def _place(files: Source, packed: str) -> str:
    plain = packed.removesuffix(".gz")
    # Some distributions spell the raw names with a dot.
    return files.find(packed) or files.need(plain, plain.replace("-idx", ".idx"), packed)


def _array(files: Source, place: str) -> npt.NDArray[np.uint8]:
    content = files.read(place)
    if place.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as e:
            raise OSError(f"{place} in {files.path} is damaged or cut off ({e}); get it again") from e
    return read_idx(place, content)


def _split(
    files: Source, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], num_classes: int
) -> Split:
    if images.ndim != 3 or labels.shape != (len(images),):
        raise UserError(f"{files.path}: labels of shape {labels.shape} for images of shape {images.shape}")
    if labels.size and labels.max() >= num_classes:
        raise UserError(f"{files.path}: labels up to {labels.max()} for {num_classes} classes")
    return Split(images=images[:, None], labels=labels.astype(np.int64))


def _mnist(config: DataConfig, source: Path | None) -> Built:
    from torchvision.datasets import MNIST

    return build_mnist(config, source, MNIST, tuple("0123456789"))


def _fashion_mnist(config: DataConfig, source: Path | None) -> Built:
    from torchvision.datasets import FashionMNIST

    return build_mnist(config, source, FashionMNIST, FASHION)


def _remedy(place: str) -> str:
    return (
        f"get {{train,t10k}}-images-idx3-ubyte.gz and {{train,t10k}}-labels-idx1-ubyte.gz from {place} "
        f"(the source is their folder)"
    )


DATASETS = {
    "mnist": DatasetInfo(
        build=_mnist,
        description="MNIST, 60000 + 10000 handwritten digits 1x28x28, 10 classes; downloaded",
        remedy=_remedy("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        outline=lambda config: Outline(
            shape=(1, 28, 28),
            class_counts=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            num_test=10_000,
        ),
        normalisation=Normalisation(mean=(0.1307,), std=(0.3081,)),
        licence="CC BY-SA 3.0",
    ),
    "fashion_mnist": DatasetInfo(
        build=_fashion_mnist,
        description="Fashion-MNIST, 60000 + 10000 articles of clothing 1x28x28, 10 classes; downloaded",
        remedy=_remedy("https://github.com/zalandoresearch/fashion-mnist"),
        outline=lambda config: Outline(shape=(1, 28, 28), class_counts=(6000,) * 10, num_test=10_000),
        normalisation=Normalisation(mean=(0.2860,), std=(0.3530,)),
        licence="MIT",
    ),
}
