"""Ray's temporary folder: usable, with room, and what former sessions left in it."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from rayfl import places
from rayfl.actors.temp_folder import check_temp_folder, temp_folder
from rayfl.doctor.finding import Finding, Request, ok, warning

_FULL = 0.95
"""From here on Ray makes no more objects that it would have to keep on this disk."""
_MUCH = 1e9
"""Bytes of old sessions that are worth a word."""


def check(request: Request) -> Iterator[Finding]:
    """Raises UserError where Ray could not start."""
    check_temp_folder()
    folder = temp_folder()
    disk = shutil.disk_usage(places.nearest(folder))
    yield ok(f"{folder} (RAY_TMPDIR chooses another), {disk.free / 1e9:.1f} GB free")
    if disk.used > _FULL * (disk.used + disk.free):
        yield warning(
            f"its disk is {100 * disk.used / (disk.used + disk.free):.0f} % full, and Ray refuses to keep "
            f"objects there from {100 * _FULL:.0f} % on",
            "make room, or set RAY_TMPDIR to a folder on another disk",
        )
    network = places.network_file_system(folder)
    if network:
        yield warning(
            f"it is on a network file system ({network})",
            "set RAY_TMPDIR to a folder on a disk of this machine",
        )
    yield from _old_sessions(folder)


def _old_sessions(folder: Path) -> Iterator[Finding]:
    sessions = list(folder.glob("session_[0-9]*"))
    old = [session for session in sessions if not _answers(session)]
    if not old:
        return
    size = sum(_size(session) for session in old)
    text = f"{len(old)} sessions that have ended left {size / 1e6:.0f} MB in it"
    if size < _MUCH:
        yield ok(text)
    elif len(old) == len(sessions):
        yield warning(text, f"remove them: rm -r {folder}/session_*")
    else:
        yield warning(text, f"when no Ray runs any more: rm -r {folder}/session_*")


def _answers(session: Path) -> bool:
    """Whether one of a session's services still listens."""
    for path in session.glob("sockets/*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
            return True
    return False


def _size(folder: Path) -> int:
    """Bytes on disk."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
