"""What the readers of official layouts share."""

import csv
import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Outline
from rayfl.data.layouts.source import Source
from rayfl.data.sampling import Ints
from rayfl.errors import UserError

log = logging.getLogger("rayfl.data")

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


def downloads(config: DataConfig) -> Path:
    """Where official files are downloaded to without ``data.source``."""
    assert config.root is not None
    return Path(config.root) / "downloads" / config.name


def open_source(config: DataConfig, source: Path | None, archives: Sequence[str] = ()) -> Source:
    """The user's files, or what was downloaded. Raises OSError where there is nothing."""
    folder = downloads(config)
    return Source(source or folder, folder.with_name("unpacked"), archives)


def check_official(source: Source, checksums: Mapping[str, str]) -> None:
    """Say which files (name -> the md5 of the official one) aren't the official ones."""
    others = [
        name
        for name, md5 in checksums.items()
        if hashlib.md5(source.read(name), usedforsecurity=False).hexdigest() != md5
    ]
    if others:
        log.warning("not the official files, by their checksums: %s in %s", ", ".join(others), source.path)


def is_image(name: str) -> bool:
    """By its ending."""
    return name.lower().endswith(IMAGES)


def stem(name: str) -> str:
    """``ISIC_0000001`` of ``some/folder/ISIC_0000001.jpg``."""
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def text(name: object, content: bytes) -> str:
    """Content as text. Raises UserError where it isn't UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise UserError(f"{name} isn't UTF-8 (byte {e.start}): save it as UTF-8") from e


def table(name: object, content: bytes, needed: Iterable[str] = ()) -> list[dict[str, str]]:
    """The rows of a CSV or tab-separated file with a header, as column -> cell.

    Raises UserError where a column of ``needed`` is missing or a row has too few or too many cells.
    """
    lines = text(name, content)
    delimiter = "\t" if "\t" in lines.partition("\n")[0] else ","
    reader = csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        missing = [column for column in needed if column not in header]
        if missing:
            raise UserError(f"{name} lacks the column {missing[0]}: it has {', '.join(header) or 'nothing'}")
        rows = []
        for cells in reader:
            if cells and len(cells) != len(header):
                raise UserError(
                    f"line {reader.line_num} of {name} has {len(cells)} columns, not {len(header)} as its "
                    f"header: repair or remove it"
                )
            if cells:
                rows.append(dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as e:
        raise UserError(f"{name} isn't a whole CSV file (line {reader.line_num}: {e}): get it again") from e
    if not rows:
        raise UserError(f"{name} has no rows: get it again")
    return rows


def look_up(found: Mapping[str, str], wanted: Sequence[str], listed_in: object, where: object) -> list[str]:
    """The file of each name that a list speaks of. Raises FileNotFoundError where some are absent."""
    absent = [name for name in wanted if name not in found]
    if absent:
        raise FileNotFoundError(
            f"{len(absent)} of {len(wanted)} images listed in {listed_in} aren't in {where}, "
            f"the first is {absent[0]}"
        )
    return [found[name] for name in wanted]


def number(values: Sequence[str], known: Sequence[str], what: str) -> Ints:
    """The place of each value among ``known``, int64 [N]. Raises UserError for any other."""
    places = {name: i for i, name in enumerate(known)}
    for value in values:
        if value not in places:
            raise UserError(f"unknown {what} '{value}': known: {', '.join(list(known)[:20])}")
    return np.array([places[value] for value in values], dtype=np.int64)


def classes_of(values: Iterable[str]) -> list[str]:
    """The different values in order: as numbers where all are, else by name."""
    different = set(values)
    return sorted(different, key=int) if all(v.isdecimal() for v in different) else sorted(different)


def outline(counts: Sequence[int], num_test: int, side: int | None = None) -> Callable[[DataConfig], Outline]:
    """Of colour images [3, side, side]; without ``side`` of the size that they are resized to."""

    def of(config: DataConfig) -> Outline:
        size = side or config.image_size or 224
        return Outline(shape=(3, size, size), class_counts=tuple(counts), num_test=num_test)

    return of
