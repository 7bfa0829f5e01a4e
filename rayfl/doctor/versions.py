"""Python and the packages, against what rayfl asks for."""

import platform
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import rayfl
from rayfl.doctor.finding import Finding, Request, ok, problem, warning

_SOURCE = Path(rayfl.__file__).parent.parent
_NAMED = ("ray", "torch", "mlflow")


def check(request: Request) -> Iterator[Finding]:
    """Each package that is missing or out of range, and how they compare with the releases known to work."""
    python, wanted = asked_for(_SOURCE)
    if platform.python_version() not in SpecifierSet(python):
        yield problem(
            f"Python {platform.python_version()} is not {python}", "make an environment with another"
        )
    else:
        yield ok(f"Python {platform.python_version()} in {sys.prefix}, rayfl in {_SOURCE / 'rayfl'}")
    yield from _installation(wanted)
    needed = [Requirement(line) for line in wanted]
    needed = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    unfit = [finding for one in [*needed, *_extras(needed)] for finding in _unfit(one)]
    yield from unfit
    if not unfit:
        named = ", ".join(f"{name} {metadata.version(name)}" for name in _NAMED)
        yield ok(f"{len(needed)} packages are as rayfl asks for, among them {named}")
    yield from _pins(_SOURCE / "constraints.txt", needed)


def asked_for(source: Path) -> tuple[str, list[str]]:
    """Python's range and the requirements: of the source that runs, else as they were installed."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == "rayfl":
            return project["requires-python"], project["dependencies"]
    except (OSError, KeyError):
        pass
    own = [line for line in metadata.requires("rayfl") or [] if "extra ==" not in line]
    return metadata.metadata("rayfl")["Requires-Python"], own


def _installation(wanted: list[str]) -> Iterator[Finding]:
    installed = {str(Requirement(line)) for line in _requires("rayfl")}
    added = {str(Requirement(line)) for line in wanted} - installed
    if not installed:
        yield warning("rayfl runs from its source and is not installed", f"pip install -e {_SOURCE}")
    elif added:
        yield warning(
            f"rayfl was installed before its source asked for {', '.join(sorted(added))}",
            f"pip install -e {_SOURCE}",
        )


def _extras(needed: list[Requirement]) -> Iterator[Requirement]:
    """What the extras of packages ask for, e.g. ``ray[tune]``."""
    for one in needed:
        for line in _requires(one.name) if one.extras else ():
            part = Requirement(line)
            if part.marker is None or part.marker.evaluate({"extra": ""}):
                continue
            if any(part.marker.evaluate({"extra": extra}) for extra in one.extras):
                yield part


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _unfit(one: Requirement) -> Iterator[Finding]:
    command = f"pip install '{one.name}{one.specifier}'"
    try:
        version = metadata.version(one.name)
    except metadata.PackageNotFoundError:
        yield problem(f"{one.name} is not installed", command)
        return
    if not one.specifier.contains(version, prereleases=True):
        yield problem(f"{one.name} {version} is not {one.specifier}", command)


def _pins(constraints: Path, needed: list[Requirement]) -> Iterator[Finding]:
    """Direct requirements whose release is another than the known one: a first suspect, but no fault."""
    if not constraints.is_file():
        return
    lines = (line.partition("#")[0].strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    pins = [Requirement(line) for line in lines if line]
    direct = {canonicalize_name(one.name) for one in needed}
    others = [
        f"{pin.name} {version} (known: {pin.specifier})"
        for pin in pins
        if canonicalize_name(pin.name) in direct
        and (pin.marker is None or pin.marker.evaluate())
        and (version := _version(pin.name)) is not None
        and not pin.specifier.contains(version, prereleases=True)
    ]
    if others:
        yield ok(f"other releases than those known to work together: {', '.join(others)}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
