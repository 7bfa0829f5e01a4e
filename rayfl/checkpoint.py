"""Checkpoints that are whole or not there: written aside, renamed, and checked on loading."""

import hashlib
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch

KEEP = 2
_LOG = logging.getLogger("rayfl.checkpoint")


def save(folder: Path, t: int, state: dict[str, Any]) -> Path:
    """Write the state after round ``t``; older checkpoints than the last two go."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{t:06d}.pt"
    write_whole(path, hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for old in _all(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest state that is whole; None if there is none. A damaged one is named and passed over."""
    for path in reversed(_all(folder)):
        digest, _, payload = path.read_bytes().partition(b"\n")
        if hashlib.sha256(payload).hexdigest().encode() == digest:
            state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
            return state
        _LOG.warning("checkpoint %s is damaged: going back to the one before it, if there is one", path)
    return None


def clear(folder: Path) -> None:
    """Remove all checkpoints."""
    for path in _all(folder):
        path.unlink(missing_ok=True)


def clean(folder: Path) -> None:
    """Remove what processes that were killed left half-written."""
    for path in folder.glob(".*"):
        writer = path.suffix.removeprefix(".")
        if writer.isdecimal() and not _is_running(int(writer)):
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: readers see the old or the new, never half."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"))
