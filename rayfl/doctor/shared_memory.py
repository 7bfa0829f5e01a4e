"""/dev/shm, where Ray keeps the objects that processes share."""

import shutil
from collections.abc import Iterator

from rayfl import allotment
from rayfl.doctor.finding import Finding, Request, ok, warning
from rayfl.doctor.memory import amounts

_SHM = "/dev/shm"
_SHARE = 0.3
_MOST = 10e9
"""Of the available memory Ray takes this share for its object store, and from this size on never more than
/dev/shm holds (Ray 2.60, ``resolve_object_store_memory``)."""


def check(request: Request) -> Iterator[Finding]:
    """Whether Ray's object store fits."""
    free = shutil.disk_usage(_SHM).free
    available = min(amounts()[1], allotment.memory_limit() or amounts()[1])
    wanted = min(_SHARE * available, _MOST)
    if free < wanted:
        yield warning(
            f"{_SHM} has {free / 1e6:.0f} MB, Ray wants {wanted / 1e6:.0f} MB for its objects and keeps them "
            f"on disk instead, which is slow",
            f"in Docker: --shm-size={wanted * 1.1 / 1e9:.1f}g; else free some in {_SHM}",
        )
    else:
        yield ok(f"{_SHM} has {free / 1e9:.1f} GB for Ray's objects")
