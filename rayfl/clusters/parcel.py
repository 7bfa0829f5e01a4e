"""What is sent with a job: the named files, the user's own modules, and rayfl where it is asked for.

Nothing else of the folder goes along: no data, no environment, no results, no history.
"""

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import rayfl
from rayfl.errors import UserError
from rayfl.text import in_bytes

LIMIT = 5_000_000
"""Bytes. Whatever is larger belongs on the cluster's storage."""
CHECK = "rayfl_check.py"
COLLECT = "rayfl_collect.py"

Parcel = Mapping[str, bytes]
"""Content by its place in the job's folder."""


def pack(files: Iterable[str], ship_rayfl: bool) -> Parcel:
    """The parcel of a command; UserError, naming the largest file, if it is too large."""
    parcel = {place: Path(place).read_bytes() for place in [*files, *own_modules()]}
    if ship_rayfl:
        parcel.update(rayfl_itself())
    size = sum(map(len, parcel.values()))
    if size > LIMIT:
        largest = max(parcel, key=lambda place: len(parcel[place]))
        raise UserError(
            f"{in_bytes(size)} are too much to send (at most {in_bytes(LIMIT)}), '{largest}' alone has "
            f"{in_bytes(len(parcel[largest]))}: put it on the cluster's shared storage and name it there"
        )
    return {**parcel, CHECK: script("check")}


def own_modules() -> Iterator[str]:
    """The modules of this folder that checking the request has imported: a method and what it needs."""
    here = Path.cwd()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.split(".")[0] in ("rayfl", "__main__"):
            continue
        stem = Path(*name.split("."))
        for place in (stem.with_suffix(".py"), stem / "__init__.py"):
            # Its place tells it from what is installed in an environment below this folder.
            if Path(file).absolute() == here / place:
                yield place.as_posix()


def rayfl_itself() -> dict[str, bytes]:
    """rayfl's package and its record of version and requirements."""
    package = Path(rayfl.__file__).parent
    found = {
        (Path("rayfl") / path.relative_to(package)).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix in (".py", ".yaml", ".typed")
    }
    installed = importlib.metadata.distribution("rayfl")
    record = f"rayfl-{installed.version}.dist-info/METADATA"
    return {
        **found,
        record: (installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "").encode(),
    }


def script(name: str) -> bytes:
    """One of the scripts that run on the cluster."""
    return (Path(__file__).parent / "remote" / f"{name}.py").read_bytes()


def unpack(parcel: Parcel, folder: Path) -> None:
    """Write a parcel out."""
    for place, content in parcel.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def summary(parcel: Parcel) -> str:
    """What is sent, in one line."""
    own = [place for place in parcel if place != CHECK and not place.startswith(("rayfl/", "rayfl-"))]
    names = ", ".join(own[:8]) + (f" and {len(own) - 8} more" if own[8:] else "")
    parts = [names] if own else []
    if len(own) + 1 < len(parcel):
        parts.append(f"rayfl {importlib.metadata.version('rayfl')}")
    size = in_bytes(sum(map(len, parcel.values())))
    return f"{' and '.join(parts) or 'no files of yours'}, {size} in all"
