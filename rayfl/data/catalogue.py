"""From the name of a dataset to its place on disk, and how it is made.

A name is a row of the table, or that of a folder prepared earlier under a name of the user's own. General
layouts (a folder of images, a table) are always prepared under an own name: by default that of the source.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfl.data.columns import checksum
from rayfl.data.config import DataConfig
from rayfl.data.datasets import DATASETS
from rayfl.data.info import DatasetInfo
from rayfl.data.layouts import LAYOUTS
from rayfl.errors import UserError
from rayfl.suggest import unknown

FORMAT = 2
"""Of prepared folders; a copy in another format is prepared again."""

FILES = {"train.arrow", "test.arrow", "meta.json", "card.json", "card.md"}
"""What a prepared folder holds."""

_OWN_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a prepared dataset lies or will lie, and how it is made."""

    folder: Path
    name: str
    """What ``data.name`` calls it."""
    dataset: str
    """Its row of the table."""
    config: DataConfig
    """With an absolute root and source."""

    @property
    def info(self) -> DatasetInfo:
        """Its row of the table."""
        return DATASETS[self.dataset]

    @property
    def source(self) -> Path | None:
        """The user's files."""
        return None if self.config.source is None else Path(self.config.source)

    @property
    def options(self) -> dict[str, Any]:
        """The settings that change the content."""
        return dict(self.info.options(self.config))

    @property
    def command(self) -> str:
        """What prepares it."""
        words = ["rayfl", "data", "prepare", self.dataset]
        if self.dataset in LAYOUTS:
            words += ["--source", str(self.source or "PATH")]
        if self.name != self.dataset:
            words += ["--as", self.name]
        if self.folder.parent != root_of(DataConfig()):
            words += ["--root", str(self.folder.parent)]
        return shlex.join(words)


def root_of(config: DataConfig) -> Path:
    """The folder of prepared datasets."""
    return Path(config.root or os.environ.get("RAYFL_DATA") or "~/.cache/rayfl").expanduser().absolute()


def locate(config: DataConfig, own_name: str | None = None) -> Place:
    """Where the dataset that ``config`` names lies; ``own_name`` prepares it under another name.

    Raises UserError for a name that is neither in the table nor prepared, or that can't be used.
    """
    root = root_of(config)
    source = None if config.source is None else str(Path(config.source).expanduser().absolute())
    config = replace(config, root=str(root), source=source)
    name = config.name
    if name not in DATASETS:
        return _prepared_place(config, root)
    if own_name is None and source is not None and takes_any_files(DATASETS[name]):
        path = Path(source).resolve()
        own_name = path.name.split(".")[0] if path.is_file() else path.name
    if own_name is not None:
        return _own_place(config, root, own_name)
    folder = name
    if options := dict(DATASETS[name].options(config)):
        folder += "-" + hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    return Place(folder=root / folder, name=name, dataset=name, config=config)


def _prepared_place(config: DataConfig, root: Path) -> Place:
    """A folder prepared under an own name; what it was made of is read from it."""
    meta = read_meta(root / config.name) if _OWN_NAME.fullmatch(config.name) else None
    if meta is None or meta["dataset"] not in DATASETS:
        raise unknown("dataset", config.name, [*DATASETS, *(meta["name"] for _, meta in prepared(root))])
    made = replace(config, name=meta["dataset"], source=meta["source"])
    return Place(folder=root / config.name, name=config.name, dataset=made.name, config=made)


def _own_place(config: DataConfig, root: Path, own_name: str) -> Place:
    place = Place(folder=root / own_name, name=own_name, dataset=config.name, config=config)
    other = read_meta(place.folder)
    reason = None
    if own_name in DATASETS:
        reason = "rayfl has a dataset of that name"
    elif not _OWN_NAME.fullmatch(own_name):
        reason = "letters, digits and ._- make a name"
    elif other and (other["dataset"], other["source"]) != (config.name, config.source):
        reason = f"it is prepared from {other['source'] or other['dataset']} already"
    if reason is not None:
        command = f"rayfl data prepare {config.name} --source {config.source or 'PATH'} --as OWN_NAME"
        raise UserError(f"'{own_name}' can't name this dataset, {reason}: choose another name with {command}")
    return place


def takes_any_files(info: DatasetInfo) -> bool:
    """Whether a row is a general layout: what it holds is up to the user's files."""
    return info.needs_source and info.outline is None


def check_name(config: DataConfig) -> None:
    """Raise UserError where ``config`` names no dataset."""
    locate(config)


def prepared(root: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Folders below ``root`` that hold a prepared dataset, by name, each with its meta.json."""
    for folder in sorted(root.glob("[!.]*")):
        meta = read_meta(folder)
        if meta is not None:
            yield folder, meta


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What meta.json says, or None where there is none of this format."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return meta if meta["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def damage(place: Place) -> str | None:
    """What is wrong with a prepared copy, or None.

    A file whose size and time are as they were written is trusted, as git does; only another (copied,
    overwritten) is read through for its checksum.
    """
    try:
        meta = json.loads((place.folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or meta["version"] != place.info.version:
            return "is from another version"
        for split, written in meta["splits"].items():
            path = place.folder / f"{split}.arrow"
            status = path.stat()
            if status.st_size != written["bytes"]:
                return f"has {status.st_size} bytes of {written['bytes']} in {path.name}"
            if status.st_mtime_ns != written["mtime_ns"] and checksum(path) != written["crc32"]:
                return f"has a wrong checksum in {path.name}"
        if set(meta["splits"]) != {"train", "test"}:
            return "lacks a split"
    except (FileNotFoundError, NotADirectoryError) as e:
        return f"lacks {Path(e.filename).name}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "has an unreadable meta.json"
    return None
