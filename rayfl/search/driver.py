"""What the driver of any search does: keep the books, show how it goes, watch the clock."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl import runs
from rayfl.bookkeeping import Book
from rayfl.config import ExperimentConfig
from rayfl.progress import Progress
from rayfl.search.config import SearchConfig
from rayfl.search.record import Record
from rayfl.search.trial import Outcome, Trial, outcome, said
from rayfl.trials import Step

if TYPE_CHECKING:
    from rayfl.tracking import Store


@dataclass
class Cells:
    """What is reported of, so far."""

    out: Path
    cells: dict[str, ExperimentConfig] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class Driver:
    """Is told what happens to the trials of a search."""

    book: Book
    store: "Store | None" = None

    def __init__(self, search: SearchConfig, out: Path, record: Record, show: Progress) -> None:
        self.search, self.record, self.cells = search, record, Cells(out)
        self.over = ""
        """Why everything is to end before the last trial has: interrupt, or hours."""
        self._show = show
        self._until = time.monotonic() + 3600 * search.hours if search.hours is not None else None

    def keys(self, trial: Trial) -> list[str]:
        """What the seeds of a trial are called in the books."""
        raise NotImplementedError

    def folder_of(self, key: str) -> Path:
        """Where the results of one seed of a trial go."""
        raise NotImplementedError

    def name(self, trial: Trial) -> str:
        """What a trial is called where people read."""
        raise NotImplementedError

    def outcome(self, trial: Trial) -> Outcome:
        """What the seeds of a trial have come to, as far as is known."""
        histories = [[] if found is None else found.result.history for found in self.stored(trial)]
        return outcome(histories, list(self.search.metric))

    def stored(self, trial: Trial) -> Sequence[runs.Stored | None]:
        """The results of a trial's seeds."""
        return [runs.load(self.folder_of(key)) for key in self.keys(trial)]

    def took(self, number: int, step: Step) -> None:
        """Rounds of a trial came in."""
        for key, report in step.reports.items():
            self.book.take(key, report)
        rows = [row for report in step.reports.values() for row in report.rows]
        if rows:
            spent = {key: sum(row.get(key, 0.0) for row in rows) for key in ("wall/round_s", "wall/eval_s")}
            rounds = self.cells.cells[next(iter(step.reports))].rounds
            name = self.name(self.record.trials[number])
            self._show.row(name, rounds, {"round": step.numbers["round"], **spent})

    def restarted(self, number: int, why: str) -> None:
        """The process of a trial died, and another takes its place."""
        name = self.name(self.record.trials[number])
        self._show.say(f"{name}: {why}, going on from the last checkpoint")

    def tick(self) -> None:
        """Called several times a second."""
        self._show.tick()
        if self._until is not None and time.monotonic() > self._until and not self.over:
            self.over = "hours"

    def interrupt(self) -> None:
        """End what is running."""
        self.over = "interrupt"

    def _end(self, trial: Trial, status: str) -> Outcome:
        """Write down and show what became of a trial."""
        errors = [found.error for found in self.stored(trial) if found is not None and found.error]
        self.record.set(trial, status, errors[0].splitlines()[-1] if errors and status == "FAILED" else "")
        result = self.outcome(trial)
        self._show.end(self.name(trial), f"{status}{said(self.search, status, result)}", {})
        if trial.error:
            self._show.say(f"{self.name(trial)}: {trial.error}")
        return result
