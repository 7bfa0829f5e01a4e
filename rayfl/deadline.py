"""A time limit for one call: an exception where it hangs; where none gets through, the process ends."""

import faulthandler
import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rayfl.errors import UserError

GRACE_S = 10.0
"""Seconds after which a process ends that an exception didn't reach: it hangs in foreign code."""
_AGAIN_S = 1.0


class TookTooLong(Exception):
    """A call didn't come back in time."""


def prepare_deadline(seconds: float | None) -> None:
    """Refuse a limit that could not be kept; do beforehand what would count as a client's time and isn't."""
    if seconds is None:
        return
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            f"fleet.client_timeout_s={seconds:g} can only interrupt a main thread, this run is in another "
            f"thread: use fleet.kind=ray, or leave it out"
        )
    # The first optimiser of a process imports this, which takes seconds.
    importlib.import_module("torch._dynamo")


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise TookTooLong in the block after so many seconds, again and again until it gets through."""
    if seconds is None:
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TookTooLong(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def backstop(seconds: float | None) -> Iterator[None]:
    """End this process when the block takes ``GRACE_S`` longer than so many seconds, whatever it is doing.

    The threads' stacks go to stderr. Works where no exception can: in native code that never returns.
    """
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
