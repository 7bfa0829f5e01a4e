"""What a builder hands over, written as the files of a prepared dataset."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayfl.data import card, columns, journal
from rayfl.data.catalogue import FORMAT, Place
from rayfl.data.dataset import PHOTOGRAPH_SIZE
from rayfl.data.info import Built, Files, Labels, Split
from rayfl.data.moments import MOST_PHOTOGRAPHS, batches, moments
from rayfl.data.progress import Progress
from rayfl.errors import UserError


def write(folder: Path, partial: Path, place: Place, built: Built, skip: bool, progress: Progress) -> None:
    """Fill ``folder``; what is gathered on the way lies in ``partial``, where the next call finds it."""
    key = json.dumps([FORMAT, place.info.version, place.dataset, str(place.source), place.options])
    proofs, contents = {}, {}
    for name, split in (("train", built.train), ("test", built.test)):
        if isinstance(split, Files):
            progress.begin(f"{place.name}/{name}", len(split.names))
            gathered = journal.gather(split, partial, name, key, skip, progress)
            progress.close()
            pixels, contents[name] = _of_files(split, gathered)
        else:
            pixels, contents[name] = _of_arrays(split)
        samples = contents[name].samples
        if not len(samples.labels):
            raise UserError(
                f"dataset '{place.name}' has no {name} image that can be read: see {place.source}"
            )
        proofs[name] = columns.write(folder / f"{name}.arrow", {**pixels, **_numbers(samples)})
        proofs[name]["class_counts"] = np.bincount(samples.labels, minlength=built.num_classes).tolist()
    train = columns.Columns(folder / "train.arrow")
    normalisation = _normalisation(place, train)
    meta = {
        "format": FORMAT,
        "version": place.info.version,
        "name": place.name,
        "dataset": place.dataset,
        "source": None if place.source is None else str(place.source),
        "task": built.task,
        "num_classes": built.num_classes,
        "class_names": built.class_names,
        "domain_names": built.domain_names,
        "non_benign": built.non_benign,
        "shape": _shape(train),
        "mean": normalisation["mean"],
        "std": normalisation["std"],
        "splits": proofs,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    card.write(folder, place, built, contents, normalisation)


def _of_arrays(split: Split) -> tuple[dict[str, pa.Array], card.Content]:
    height, width = split.images.shape[2:]
    pixels = {"image": _tensors(split.images)}
    if split.masks is not None:
        pixels["mask"] = _tensors(split.masks)
    dimensions = np.tile([width, height], (len(split.images), 1))
    return pixels, card.Content(samples=split, dimensions=dimensions, skipped=[])


def _tensors(images: npt.NDArray[np.uint8]) -> pa.Array:
    return columns.tensors(np.ascontiguousarray(images), images.shape[1:])


def _of_files(files: Files, gathered: journal.Gathered) -> tuple[dict[str, pa.Array], card.Content]:
    shapes = {} if files.shape is None else {"image": files.shape, "mask": files.shape[1:]}
    pixels = {}
    for kind, path in gathered.blocks.items():
        # Mapped, so that a block larger than memory is no trouble.
        block = pa.memory_map(str(path)).read_buffer() if len(gathered.rows) else b""
        if files.shape is None:
            pixels[kind] = columns.encoded(block, gathered.sizes[kind])
        else:
            pixels[kind] = columns.tensors(block, shapes[kind])
    rows = gathered.rows
    samples = Labels(
        labels=files.labels[rows],
        domains=None if files.domains is None else files.domains[rows],
        groups=None if files.groups is None else files.groups[rows],
    )
    return pixels, card.Content(samples=samples, dimensions=gathered.dimensions, skipped=gathered.skipped)


def _numbers(samples: Labels) -> dict[str, pa.Array]:
    numbers = {"label": samples.labels, "domain": samples.domains, "group": samples.groups}
    return {name: pa.array(n.astype(np.int64)) for name, n in numbers.items() if n is not None}


def _shape(train: columns.Columns) -> tuple[int, ...]:
    """(C, H, W) as batches have it by default."""
    if train.is_encoded("image"):
        return 3, PHOTOGRAPH_SIZE, PHOTOGRAPH_SIZE
    return train.tensors("image").shape[1:]


def _normalisation(place: Place, train: columns.Columns) -> dict[str, Any]:
    official = place.info.normalisation
    if official is not None:
        return {"mean": list(official.mean), "std": list(official.std), "how": "the constants in common use"}
    mean, std = moments(batches(train))
    how = "computed from all training images"
    if train.is_encoded("image") and train.num_rows > MOST_PHOTOGRAPHS:
        how = f"computed from {MOST_PHOTOGRAPHS} evenly spaced training images"
    return {"mean": mean, "std": std, "how": how}
