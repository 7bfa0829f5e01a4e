"""The way to a store that may be slow or away: in the background, and kept until it arrives."""

import logging
import threading
import time
from collections.abc import Callable

from rayfl.tracking.address import reach
from rayfl.tracking.client import ANSWER_S, LAST_ANSWER_S, library
from rayfl.tracking.refusals import reason

PAUSE_S = 1.0
"""Seconds between two writes: quicker rounds are written together."""
SHARE = 0.03
"""The share of its time for which the driver may wait for a store that is away."""
_LOG = logging.getLogger("rayfl.tracking")


class Outbox:
    """Writes to one store, one after another. Trouble is a warning, once, since training must not hang on a
    logbook.

    Between writes there is a pause; one that failed after d seconds is followed by d / SHARE seconds without.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        """With its secrets."""
        self._next = 0.0
        self._said: set[str] = set()
        self._owed: list[Callable[[], None]] = []
        self._writer: threading.Thread | None = None
        self.away = False
        """Whether the last write failed."""

    @property
    def due(self) -> bool:
        """Whether nothing is being written, and the pause is over."""
        writing = self._writer is not None and self._writer.is_alive()
        return not writing and time.monotonic() >= self._next

    def post(self, write: Callable[[], None]) -> None:
        """Write in the background. What is written must be left alone until the outbox is due again."""
        self.wait()
        self._writer = threading.Thread(target=self._deliver, args=(write, ANSWER_S), daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def send(self, write: Callable[[], None], insist: bool = False) -> bool:
        """Write now, unless the store is away and was asked a moment ago; say whether it arrived.

        Who insists is heard in any case, and waits longer.
        """
        self.wait()
        if self.away and not (insist or self.due):
            return False
        return self._deliver(write, LAST_ANSWER_S if insist else ANSWER_S)

    def owe(self, write: Callable[[], None]) -> None:
        """Keep the last write of a run until the store is back."""
        self._owed.append(write)

    def settle(self) -> int:
        """Try what is owed for the last time; the number of runs that stay incomplete."""
        self.wait()
        while self._owed and self._try(self._owed[0], LAST_ANSWER_S):
            del self._owed[0]
        return len(self._owed)

    def _deliver(self, write: Callable[[], None], answer_s: int) -> bool:
        arrived = self._try(write, answer_s)
        if arrived and self._owed and self._try(self._owed[0], ANSWER_S):
            del self._owed[0]
        return arrived

    def _try(self, write: Callable[[], None], answer_s: int) -> bool:
        started = time.monotonic()
        try:
            reach(self.uri)
            with library(answer_s):
                write()
        except Exception as error:
            why = reason(error, self.uri)
            self._say_once(f"MLflow takes no more metrics for now ({why}); the run goes on")
            self.away = True
        else:
            if self.away:
                self._say_once("MLflow takes metrics again")
            self.away = False
        now = time.monotonic()
        self._next = now + ((now - started) / SHARE if self.away else PAUSE_S)
        return not self.away

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            _LOG.warning(line)
