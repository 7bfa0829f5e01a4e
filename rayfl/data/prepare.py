"""Preparation: from a builder or the user's files to a folder of Arrow files, once, whole or not at all.

``<root>/<name>[-<hash of options>]/`` holds ``train.arrow``, ``test.arrow``, ``meta.json`` and the card. The
folder appears by one rename, under a lock, so whoever finds it finds it whole. Until then everything lies in
``.<name>.partial``, where a later preparation goes on with what a killed one has gathered.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from rayfl.data.catalogue import FILES, Place, damage
from rayfl.data.info import Built
from rayfl.data.progress import Progress
from rayfl.data.writing import write
from rayfl.errors import UserError

log = logging.getLogger("rayfl.data")


def prepare(place: Place, on_unreadable: Literal["raise", "skip"], progress: Progress) -> bool:
    """Make the folder of ``place``, once, however many processes ask at a time; False if it was there.

    Raises UserError where the data can't be had, an image can't be read (unless such are skipped) or the
    folder can't be written.
    """
    folder = place.folder
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            found = damage(place)
            if found is None:
                return False
            if folder.exists():
                _check_ours(folder)
                log.warning("prepared dataset %s %s: preparing it again", folder, found)
            built = _build(place)
            ready = partial / "ready"
            shutil.rmtree(ready, ignore_errors=True)
            ready.mkdir(parents=True)
            write(ready, partial, place, built, on_unreadable == "skip", progress)
            if folder.exists():
                old = folder.with_name(f".{folder.name}.damaged")
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
                ready.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                ready.rename(folder)
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as e:
        raise UserError(
            f"dataset '{place.name}' can't be written to {folder.parent} ({e}): set data.root to a "
            f"folder with room"
        ) from e
    finally:
        progress.close()
    return True


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=2)
    except Timeout:
        progress.say(f"another process is preparing {folder}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_ours(folder: Path) -> None:
    """Nothing of the user's may be replaced."""
    others = {file.name for file in folder.iterdir()} - FILES if folder.is_dir() else {folder.name}
    if others:
        raise UserError(
            f"{folder} isn't a prepared dataset, it holds {min(others)}: set data.root to another folder, or "
            f"choose another name with --as"
        )


def _build(place: Place) -> Built:
    info, name = place.info, place.name
    how = f"{info.remedy}, then: {place.command}"
    if place.source is None and info.needs_source:
        raise UserError(f"dataset '{name}' isn't prepared and can't be downloaded: {how}")
    if place.source is not None and not place.source.exists():
        raise UserError(f"dataset '{name}' can't be prepared, there is nothing at {place.source}: {how}")
    try:
        return info.build(place.config, place.source)
    except (OSError, ImportError, MemoryError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise UserError(f"dataset '{name}' can't be prepared ({reason}): {how}") from e
