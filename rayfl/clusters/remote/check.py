"""Runs first in a submitted job: can this cluster do what was sent? Written for any Python 3.8 or newer."""

import sys
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def trouble(wanted: str) -> str:
    """What keeps rayfl ``wanted`` from running here, in one line; nothing if nothing does."""
    if sys.version_info < (3, 11):  # noqa: UP036, this file may meet any
        found = ".".join(map(str, sys.version_info[:2]))
        return f"the cluster has Python {found}, rayfl needs 3.11 or newer: use another image, or --python"
    try:
        found = metadata.version("rayfl")
    except metadata.PackageNotFoundError:
        return (
            f"{sys.executable} on the cluster has no rayfl: install rayfl {wanted} there, "
            f"or submit with --ship-rayfl"
        )
    if found != wanted:
        return (
            f"the cluster has rayfl {found}, this was sent by {wanted}: "
            f"install the same there, or submit with --ship-rayfl"
        )
    lacking = list(lacks())
    return f"the cluster lacks {', '.join(lacking)}: install that on its nodes" if lacking else ""


def lacks() -> "Iterator[str]":
    """What rayfl requires and this Python does not have, or not in that version."""
    from packaging.requirements import Requirement

    for text in metadata.requires("rayfl") or ():
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            yield f"{need.name}{need.specifier}"
            continue
        if not need.specifier.contains(found, prereleases=True):
            yield f"{need.name}{need.specifier} (it has {found})"


if __name__ == "__main__":
    problem = trouble(sys.argv[1])
    if problem:
        print(f"rayfl: error: {problem}", file=sys.stderr)
        sys.exit(2)
