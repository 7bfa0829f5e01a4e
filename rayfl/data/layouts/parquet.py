"""Parquet files of encoded images and labels, as datasets on the Hugging Face hub come."""

import json
import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files
from rayfl.data.layouts.common import classes_of, number
from rayfl.data.layouts.splitting import SPLITS, divide, held_out, official_test, require_training
from rayfl.data.sampling import Ints
from rayfl.errors import UserError

log = logging.getLogger("rayfl.data")

IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")


class Shards:
    """Several Parquet files of one schema; images are read a row group at a time."""

    def __init__(self, paths: list[Path]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.files: dict[str, Any] = {}
        for path in paths:
            try:
                self.files[path.name] = pq.ParquetFile(path)
            except (pa.ArrowInvalid, pa.ArrowIOError) as e:
                raise OSError(f"{path} is damaged or cut off ({str(e).splitlines()[0]}); get it again") from e
        first = next(iter(self.files.values()))
        self.schema = first.schema_arrow
        self.image = self._column(IMAGE_COLUMNS, "image")
        self.label = self._column(LABEL_COLUMNS, "label")
        for name, file in self.files.items():
            missing = {self.image, self.label} - set(file.schema_arrow.names)
            if missing:
                raise UserError(f"{name} lacks the column {missing.pop()}, which other files have")
        # Rows are asked for in order, so the last group is the one that is asked again.
        self._group = lru_cache(maxsize=1)(self._read_group)

    def _column(self, known: Iterable[str], what: str) -> str:
        names = [name for name in known if name in self.schema.names]
        if not names:
            raise UserError(
                f"{next(iter(self.files))} lacks a column {' or '.join(known)} for the {what}: it has "
                f"{', '.join(self.schema.names)}"
            )
        return names[0]

    def labels(self) -> list[Any]:
        """Of all rows, file after file."""
        columns = [file.read(columns=[self.label]).column(0) for file in self.files.values()]
        return [value for column in columns for value in column.to_pylist()]

    def rows(self) -> list[str]:
        """``file#row group#row`` of all rows, file after file."""
        return [
            f"{name}#{group}#{row}"
            for name, file in self.files.items()
            for group in range(file.num_row_groups)
            for row in range(file.metadata.row_group(group).num_rows)
        ]

    def read(self, name: str) -> bytes:
        """The encoded image of one of ``rows``. Raises OSError where it can't be had."""
        file, group, row = name.split("#")
        value = self._group(file, int(group))[int(row)].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes) or not content:
            raise OSError(f"{name} holds no image bytes")
        return content

    def _read_group(self, file: str, group: int) -> Any:
        return self.files[file].read_row_group(group, columns=[self.image]).column(0)

    def class_names(self) -> list[str]:
        """Of the label column, where the schema names them; else none."""
        info = json.loads((self.schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = info.get("info", {}).get("features", {}).get(self.label, {})
        return list(map(str, feature.get("names") or [])) if isinstance(feature, dict) else []


def build_parquet(config: DataConfig, source: Path | None) -> Built:
    """Files are told apart by their names' beginning: train, validation, test."""
    assert source is not None
    paths, splits = _files(source)
    shards = Shards(paths)
    per_row = [
        s for s, f in zip(splits, shards.files.values(), strict=True) for _ in range(f.metadata.num_rows)
    ]
    numbers, class_names = _numbers(shards.labels(), shards.class_names(), shards.label)
    samples = Files(names=shards.rows(), labels=numbers, read=shards.read)
    # A test split whose labels are withheld is of no use.
    labelled = numbers >= 0
    if not labelled.all():
        log.warning("%s of %s rows in %s have no label: left out", (~labelled).sum(), len(labelled), source)
        samples, _ = divide(samples, ~labelled)
        per_row = [split for split, known in zip(per_row, labelled, strict=True) if known]
    test = official_test(per_row)
    if test is None:
        test = held_out(samples.labels, "parquet-split")
    train_split, test_split = divide(samples, test)
    require_training(train_split.labels, class_names, source)
    return Built(
        train=train_split, test=test_split, num_classes=len(class_names), class_names=tuple(class_names)
    )


def _files(source: Path) -> tuple[list[Path], list[str]]:
    if not source.exists():
        raise FileNotFoundError(f"{source} doesn't exist")
    paths = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not paths:
        raise FileNotFoundError(f"there are no .parquet files in {source}")
    return paths, [_split(path.name) for path in paths]


def _split(name: str) -> str:
    """By what a file's name begins with; a file that names no split is for training."""
    return SPLITS.get(name.lower().replace(".", "-").replace("_", "-").split("-")[0], "train")


def _numbers(values: list[Any], names: list[str], column: str) -> tuple[Ints, list[str]]:
    """Class numbers, -1 where the label is withheld, and the classes' names."""
    known = [v for v in values if v is not None and v != -1]
    if not all(isinstance(v, (int, str)) for v in known):
        raise UserError(f"the labels in column {column} are neither numbers nor text, one per image")
    if names and not any(isinstance(v, str) for v in known):
        wrong = next((v for v in known if not 0 <= v < len(names)), None)
        if wrong is not None:
            raise UserError(f"unknown label {wrong} in column {column}: its {len(names)} classes are named")
        return np.array([-1 if v is None else v for v in values], dtype=np.int64), names
    classes = classes_of(map(str, known))
    numbers = np.full(len(values), -1, dtype=np.int64)
    rows = [i for i, v in enumerate(values) if v is not None and v != -1]
    numbers[rows] = number([str(v) for v in known], classes, "label")
    return numbers, classes


DATASETS = {
    "parquet": DatasetInfo(
        build=build_parquet,
        description="your images in Parquet files, as datasets on the Hugging Face hub come",
        remedy="put train-*.parquet (and test-*.parquet), with a column image of encoded images and a column "
        "label, into one folder (the source)",
        needs_source=True,
        licence="yours",
    ),
}
