"""What a dataset's builder hands over, and a row of the table of datasets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.sampling import Ints

Task = Literal["classification", "segmentation"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Labels:
    """What is known of the samples of one split besides their pixels."""

    labels: Ints
    """[N], 0..num_classes-1; all 0 for segmentation, whose truth is in masks."""
    domains: Ints | None = None
    """[N], the domain (site, camera, style) a sample is from, where the set has several."""
    groups: Ints | None = None
    """[N], the natural unit a sample belongs to (lesion, patient, writer), where the set knows it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Split(Labels):
    """One split as arrays: small images of one shape."""

    images: npt.NDArray[np.uint8]
    """[N, C, H, W]"""
    masks: npt.NDArray[np.uint8] | None = None
    """[N, H, W], the class of each pixel (segmentation)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Files(Labels):
    """One split as encoded images, read one at a time: never all in memory."""

    names: Sequence[str]
    """[N], what ``read`` takes and messages show: paths below the source, members of an archive, rows."""
    read: Callable[[str], bytes]
    """The encoded image of a name. Raises OSError where it can't be had. Called from one thread."""
    mask_names: Sequence[str] | None = None
    """[N], for ``read`` as well (segmentation); a pixel above half its range is the lesion."""
    shape: tuple[int, int, int] | None = None
    """(C, H, W) where all images are small and of this shape: they are decoded once, when prepared."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Built:
    """What a builder returns."""

    train: Split | Files
    test: Split | Files
    num_classes: int
    class_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    task: Task = "classification"
    non_benign: tuple[int, ...] = ()
    """Classes that are dangerous to overlook, where the set has some (see ``rayfl.metrics``)."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What is known of a dataset without having it: enough to say what an experiment costs."""

    shape: tuple[int, int, int]
    """(C, H, W)"""
    class_counts: tuple[int, ...]
    """Training samples of each class, before any are held out."""
    num_test: int
    task: Task = "classification"


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Constants of images scaled to 0..1, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def _no_options(config: DataConfig) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A row of the table."""

    build: Callable[[DataConfig, Path | None], Built]
    """Makes, downloads, or reads the official files below the given source.
    Raises OSError or ImportError where it can't, UserError where files are not as they should be."""
    description: str
    """One line for lists."""
    remedy: str
    """What to do where ``build`` can't get at the data, e.g. offline: which files go where."""
    outline: Callable[[DataConfig], Outline] | None = None
    """What is known beforehand; None where the user's files decide."""
    options: Callable[[DataConfig], Mapping[str, Any]] = _no_options
    """The settings that change the content; each combination is prepared under a name of its own."""
    needs_source: bool = False
    """Whether it can't do without the user's files."""
    normalisation: Normalisation | None = None
    """The constants in common use; None: computed from the training images."""
    licence: str = "unknown"
    """Whose terms apply, in a few words."""
    version: int = 1
    """To be raised with every change of what ``build`` returns; older copies are prepared again."""
