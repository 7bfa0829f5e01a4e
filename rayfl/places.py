"""What is known of a path before it is used: how much of it exists, whose it is, on which file system."""

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}


def nearest(path: Path) -> Path:
    """The path itself, or the first above it that is there."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place) or place == place.parent)


def can_write(path: Path) -> bool:
    """Whether a folder can be written to, or made where it is missing."""
    place = nearest(path)
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def obstacle(path: Path) -> str:
    """Why a folder can't be written to, as far as can be told."""
    place = nearest(path)
    if not os.path.isdir(place):
        return f"'{place}' is not a folder"
    try:
        return f"'{place}' belongs to {place.owner()}"
    except KeyError:
        return f"'{place}' belongs to the user with the id {place.stat().st_uid}"


def network_file_system(path: Path) -> str | None:
    """The kind of network file system that a path is on; None for one of this machine's own."""
    kind, longest = "", -1
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        # Of mounts on the same place the last one is on top.
        if len(mount) >= longest and nearest(path).is_relative_to(mount):
            kind, longest = after.split()[0], len(mount)
    return kind if kind in _SHARED or kind.startswith("fuse.") else None
