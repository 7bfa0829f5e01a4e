"""What a terminal shows while slow modules are imported, and nowhere else."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def show() -> None:
    """Say that something is coming."""
    # With the cursor back at the start of the line, whatever is shown next takes its place.
    _write("loading ...\r")


def hide() -> None:
    """Leave the line empty."""
    _write("\x1b[K")


@contextmanager
def loading() -> Iterator[None]:
    """For the length of some imports."""
    show()
    try:
        yield
    finally:
        hide()


def _write(text: str) -> None:
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(text)
        sys.stderr.flush()
