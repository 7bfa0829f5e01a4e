"""The folder of prepared datasets: room, whole sets, and what killed preparations left."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rayfl import places, text
from rayfl.data.card import read as read_card
from rayfl.data.catalogue import Place, damage, prepared, read_meta, root_of
from rayfl.data.config import DataConfig
from rayfl.data.datasets import DATASETS
from rayfl.doctor.finding import Finding, Request, ok, problem, warning

_LITTLE = 2e9
"""Bytes. CIFAR-10 takes 0.4 GB while it is downloaded and prepared."""


def check(request: Request) -> Iterator[Finding]:
    """The root, then each set."""
    root = root_of(DataConfig(root=request.root))
    sets = list(prepared(root)) if root.is_dir() else []
    yield from _room(root, bool(sets))
    damaged = [finding for folder, meta in sets for finding in _damage(folder, meta)]
    yield from damaged
    if sets and not damaged:
        names = ", ".join(sorted({meta["name"] for _, meta in sets}))
        yield ok(f"prepared and whole: {names}")
    yield from _others(root)


def _room(root: Path, in_use: bool) -> Iterator[Finding]:
    remedy = "set RAYFL_DATA (or data.root) to a folder of your own with room"
    if not places.can_write(root):
        found = f"{root} can't be written, {places.obstacle(root)}"
        yield warning(f"{found}: what is prepared can be used", remedy) if in_use else problem(found, remedy)
        return
    free = shutil.disk_usage(places.nearest(root)).free
    if free < _LITTLE:
        yield warning(f"{root} has only {text.in_bytes(free)} free", remedy)
    else:
        made = "" if root.exists() else ", which the first preparation makes"
        yield ok(f"{root}{made}: {text.in_bytes(free)} free")


def _damage(folder: Path, meta: Mapping[str, Any]) -> Iterator[Finding]:
    if meta["dataset"] not in DATASETS:
        yield warning(f"{folder} is of '{meta['dataset']}', which this rayfl doesn't know", f"rm -r {folder}")
        return
    config = DataConfig(name=meta["dataset"], source=meta["source"], root=str(folder.parent))
    place = Place(folder=folder, name=meta["name"], dataset=meta["dataset"], config=config)
    found = damage(place)
    if found is not None:
        yield warning(f"{folder} {found}", f"the next run prepares it again, or: {place.command}")
        return
    try:
        read_card(folder)
    except (OSError, ValueError):
        yield warning(f"{folder} has no readable card", f"rm -r {folder}, then: {place.command}")


def _others(root: Path) -> Iterator[Finding]:
    """Folders that are no whole prepared set."""
    torn = [str(f.parent) for f in sorted(root.glob("[!.]*/meta.json")) if read_meta(f.parent) is None]
    if torn:
        yield warning(
            f"{len(torn)} of the folders in it are torn or of another release of rayfl",
            f"rm -r {' '.join(torn)}",
        )
    for partial in sorted(root.glob(".*.partial")):
        name = partial.name[1:].removesuffix(".partial")
        if _locked(root / f".{name}.lock"):
            yield ok(f"{name} is being prepared at this moment")
            continue
        hours = (time.time() - partial.stat().st_mtime) / 3600
        yield warning(
            f"a preparation of {name} was broken off {hours:.0f} h ago and left "
            f"{text.in_bytes(_size(partial))}",
            f"preparing it again goes on there; or: rm -r {partial}",
        )


def _locked(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names
    )
