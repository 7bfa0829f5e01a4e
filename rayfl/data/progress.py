"""How a preparation is doing, on stderr: a live line where it is a terminal, else a line now and then."""

import sys
import time
from typing import Any

_EVERY_S = 10.0


class Progress:
    """Images done, of how many, and how fast. Says nothing of what is done in a moment."""

    def __init__(self, live: bool | None = None) -> None:
        self._wants_live = sys.stderr.isatty() if live is None else live
        self._bar: Any = None

    def say(self, line: str) -> None:
        """A line that stays."""
        print(f"rayfl: {line}", file=sys.stderr, flush=True)

    def begin(self, what: str, total: int) -> None:
        """So many images are to be prepared."""
        self._what, self._total, self._done, self._resumed = what, total, 0, 0
        self._began = self._last = time.monotonic()
        if self._wants_live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total, rate="")
            self._bar.start()

    def resume(self, count: int) -> None:
        """So many were done by an earlier preparation."""
        self._resumed = self._done = count
        if count:
            self.say(f"{self._what}: going on after {count} of {self._total} images")

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        now = time.monotonic()
        rate = f"{(self._done - self._resumed) / max(now - self._began, 1e-3):.0f} images/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=rate)
        elif now - self._last >= _EVERY_S:
            self._last = now
            self.say(f"{self._what}: {self._done}/{self._total} images, {rate}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
