"""The way to a store that may be away: a fixed share of the time, kept until it arrives."""

import logging
import time
from collections.abc import Callable

from rayfl.tracking.address import reach
from rayfl.tracking.client import ANSWER_S, LAST_ANSWER_S, library
from rayfl.tracking.refusals import reason

SHARE = 0.03
"""The share of wall time that writing may take, whether the store answers or not."""
_LOG = logging.getLogger("rayfl.tracking")


class Outbox:
    """Writes to one store. Trouble is a warning, once, since training must not hang on a logbook.

    A write that took d seconds, or failed after d seconds, is followed by d / SHARE seconds without one.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        """With its secrets."""
        self._next = 0.0
        self._said: set[str] = set()
        self._owed: list[Callable[[], None]] = []
        self.away = False
        """Whether the last write failed."""

    @property
    def due(self) -> bool:
        """Whether writing has had less than its share."""
        return time.monotonic() >= self._next

    def send(self, write: Callable[[], None], insist: bool = False) -> bool:
        """Write, unless the store is away and was asked a moment ago; say whether it arrived.

        Who insists is heard in any case, and waits longer.
        """
        if self.away and not (insist or self.due):
            return False
        arrived = self._try(write, LAST_ANSWER_S if insist else ANSWER_S)
        if arrived and self._owed and self._try(self._owed[0], ANSWER_S):
            del self._owed[0]
        return arrived

    def owe(self, write: Callable[[], None]) -> None:
        """Keep the last write of a run until the store is back."""
        self._owed.append(write)

    def settle(self) -> int:
        """Try what is owed for the last time; the number of runs that stay incomplete."""
        while self._owed and self._try(self._owed[0], LAST_ANSWER_S):
            del self._owed[0]
        return len(self._owed)

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
        self._next = now + (now - started) / SHARE
        return not self.away

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            _LOG.warning(line)
