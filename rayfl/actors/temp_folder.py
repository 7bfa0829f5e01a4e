"""Ray's temporary folder, where its sessions, sockets and logs lie, and what keeps Ray from using it."""

import os
import shutil
from pathlib import Path

from rayfl import places
from rayfl.errors import UserError

LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket, on Linux."""
_LEAST_FREE = 50_000_000
"""Bytes. With less, Ray may start and fail on its first log or object."""


def temp_folder() -> Path:
    """The folder that Ray chooses."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"


def check_temp_folder() -> None:
    """Raise UserError where Ray could not start in its temporary folder."""
    folder = temp_folder()
    if not folder.is_absolute():
        raise UserError(f"Ray's temporary folder must be an absolute path, got '{folder}': set RAY_TMPDIR")
    session = f"session_2000-01-01_00-00-00_000000_{os.getpid()}"
    surplus = len(os.fsencode(folder / session / "sockets" / "plasma_store")) - LONGEST_SOCKET
    if surplus > 0:
        raise UserError(
            f"the path of Ray's temporary folder '{folder}' is {surplus} bytes too long for the sockets in "
            f"it: set RAY_TMPDIR to a shorter one, e.g. RAY_TMPDIR=/tmp"
        )
    if not places.can_write(folder):
        raise UserError(
            f"Ray can't write to its temporary folder '{folder}', {places.obstacle(folder)}: set RAY_TMPDIR "
            f"to a folder of your own, e.g. RAY_TMPDIR=$HOME/tmp"
        )
    free = shutil.disk_usage(places.nearest(folder)).free
    if free < _LEAST_FREE:
        raise UserError(
            f"the disk of Ray's temporary folder '{folder}' is full ({free / 1e6:.0f} MB left): make room, "
            f"or set RAY_TMPDIR to a folder on another disk"
        )
