"""What a check is asked and what it answers."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the checks are about, besides this machine."""

    out: str
    """Absolute folder of results, where the MLflow store is by default."""
    root: str | None = None
    """Folder of prepared datasets; default: where runs look."""
    address: str | None = None
    """A Ray cluster to join; default: what runs would do."""
    scratch: str
    """A folder for whatever a check writes; it is removed afterwards."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    level: Level
    text: str
    """What was found."""
    remedy: str = ""
    """What to do about it; empty where ``text`` says it or nothing need be done."""
    check: str = ""
    """Who found it; filled in by the runner."""


def ok(text: str) -> Finding:
    """Nothing to do."""
    return Finding(level="ok", text=text)


def warning(text: str, remedy: str) -> Finding:
    """Works, but slowly or not for long."""
    return Finding(level="warning", text=text, remedy=remedy)


def problem(text: str, remedy: str = "") -> Finding:
    """Something that a run needs does not work."""
    return Finding(level="problem", text=text, remedy=remedy)
