"""How a sweep is doing, on stderr: live where it is a terminal, short lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rayfl import waiting
from rayfl.tasks import headline
from rayfl.text import in_time, lasted

_EVERY_S = 10.0


class Progress(Protocol):
    """Is told how a sweep goes."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def begin(self, todo: int) -> None:
        """So many cells are to run."""

    def row(self, label: str, rounds: int, row: Mapping[str, float]) -> None:
        """A running cell's latest round."""

    def end(self, label: str, status: str, metrics: Mapping[str, float]) -> None:
        """A cell has ended."""

    def tick(self) -> None:
        """Called some times a second."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class _Running:
    """A cell under way. Several quick rounds are heard of at a time, so rounds tell their own length."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.round, self.rounds, self.headline = 0.0, 0, ""

    def take(self, rounds: int, row: Mapping[str, float]) -> None:
        """A round's row."""
        self.round, self.rounds = row["round"], rounds
        self.seconds += row.get("wall/round_s", 0.0) + row.get("wall/eval_s", 0.0)
        found = headline(row)
        if found is not None:
            self.headline = f"{found[0]} {100 * found[1]:.2f} %"

    def left(self) -> str:
        if not self.seconds or not 0 < self.round < self.rounds:
            return ""
        return f"{in_time(self.seconds / self.round * (self.rounds - self.round))} left"


class SweepProgress:
    """Progress on stderr."""

    def __init__(self, live: bool | None = None) -> None:
        self._live: Any = None
        self._wants_live = sys.stderr.isatty() if live is None else live
        self._running: dict[str, _Running] = {}
        self._todo, self._ended = 0, 0
        self._began = self._last = time.monotonic()

    def say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            waiting.hide()
            print(line, file=sys.stderr, flush=True)

    def begin(self, todo: int) -> None:
        self._todo, self._ended = todo, 0
        self._began = self._last = time.monotonic()
        if self._wants_live:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                self._picture(), console=Console(stderr=True), auto_refresh=False, transient=True
            )
            self._live.start()

    def row(self, label: str, rounds: int, row: Mapping[str, float]) -> None:
        self._running.setdefault(label, _Running()).take(rounds, row)

    def end(self, label: str, status: str, metrics: Mapping[str, float]) -> None:
        self._ended += 1
        cell = self._running.pop(label, _Running())
        found = headline(metrics, "final/last10_")
        number = "" if found is None else f", {found[0]} {100 * found[1]:.2f} %"
        took = f", {lasted(cell.seconds)} in rounds" if cell.seconds else ""
        self.say(f"[{self._ended}/{self._todo}] {label}: {status}{number}{took}{self._eta()}")

    def tick(self) -> None:
        now = time.monotonic()
        if self._live is not None:
            if now - self._last >= 0.25:
                self._last = now
                self._live.update(self._picture(), refresh=True)
        elif now - self._last >= _EVERY_S and self._running:
            self._last = now
            cells = "; ".join(
                f"{label} {cell.round:g}/{cell.rounds} {cell.headline}".rstrip()
                for label, cell in self._running.items()
            )
            self.say(f"... {cells}{self._eta()}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _fraction(self) -> float:
        partial = sum(cell.round / max(cell.rounds, 1) for cell in self._running.values())
        return min((self._ended + partial) / max(self._todo, 1), 1.0)

    def _eta(self) -> str:
        done = self._fraction()
        if not 0 < done < 1:
            return ""
        return f", {in_time((time.monotonic() - self._began) / done * (1 - done))} left in all"

    def _picture(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for label, cell in self._running.items():
            bar = ProgressBar(total=max(cell.rounds, 1), completed=cell.round, width=20)
            table.add_row(label, bar, f"round {cell.round:g}/{cell.rounds}", cell.headline, cell.left())
        bar = ProgressBar(total=1.0, completed=self._fraction(), width=20)
        table.add_row("all cells", bar, f"{self._ended}/{self._todo}", "", self._eta().removeprefix(", "))
        return table


class Silent:
    """No progress."""

    def say(self, line: str) -> None: ...
    def begin(self, todo: int) -> None: ...
    def row(self, label: str, rounds: int, row: Mapping[str, float]) -> None: ...
    def end(self, label: str, status: str, metrics: Mapping[str, float]) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...
