"""What a trial's process does: one cell of a sweep, and what it sends to the driver."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rayfl import runs
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.experiment import Experiment, Result

BUSY = "BUSY"
"""The status of a cell that another process is at work on."""
WAIT_S = 10.0
"""A process that Ray gave up may take this long to die and let go of its cell."""
REPORT_S = 0.5
"""Rounds that are quicker than this are sent several at a time."""


@dataclass(frozen=True)
class Report:
    """What is sent of a cell."""

    rows: list[dict[str, float]]
    partition_hash: str | None = None
    result: Result | None = None
    """Set with the last report."""
    error: str | None = None
    warnings: tuple[str, ...] = ()
    picture: Path | None = None


@dataclass(frozen=True)
class Step:
    """What a trial sends: reports by cell, and numbers that a scheduler of Tune goes by."""

    reports: Mapping[str, Report]
    done: bool
    numbers: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Any] | None = None
    """Where a trial's values change on the way: those of these rounds."""


class TrialWork(Protocol):
    """A trial in the process that trains it."""

    def advance(self) -> Step:
        """Some rounds, at least one where one is left."""

    def save(self, folder: Path) -> dict[str, Any] | None:
        """Put a checkpoint where it lasts: in ``folder``, or what comes back tells where else."""

    def load(self, saved: Path | dict[str, Any]) -> None:
        """Go on from a checkpoint, perhaps another trial's."""

    def close(self) -> None:
        """Let go of fleets and claims."""


class Work:
    """A cell in progress."""

    def __init__(self, config: ExperimentConfig, out: Path, pictured: bool) -> None:
        self.experiment: Experiment | None = None
        self._out, self._pictured = out, pictured
        self._folder = runs.cell_folder(out, config.cell_hash)
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._warnings = stack.enter_context(collected_warnings())
            stack.enter_context(runs.claim(self._folder, WAIT_S))
            self.experiment = runs.begin(self._folder, config, resume=True)
            stack.callback(self.experiment.close)
            self._stack = stack.pop_all()
        self._rows = self.experiment.rounds(self._folder)
        self._unsent = list(self.experiment.history)

    def advance(self, enough: Callable[[dict[str, float]], bool]) -> Report:
        """Rounds up to the first one that is enough."""
        assert self.experiment is not None
        result, picture = None, None
        with runs.disk_trouble(self._folder):
            for row in self._rows:
                self._unsent.append(row)
                if enough(row):
                    break
            if self.experiment.status != "RUNNING":
                result = runs.finish(self.experiment, self._folder)
                picture = runs.picture(self.experiment, self._out) if self._pictured else None
        rows, self._unsent = self._unsent, []
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return Report(rows, self.experiment.data.partition.hash, result, None, warnings, picture)

    def checkpoint(self) -> None:
        """Make the last round the one to go on from."""
        assert self.experiment is not None
        if self.experiment.status == "RUNNING" and self.experiment.history:
            self.experiment.checkpoint(self._folder)

    def close(self) -> None:
        """Let go of the fleet and the claim on the cell."""
        self._stack.close()


class CellWork:
    """One cell, to its end."""

    def __init__(self, config: ExperimentConfig, out: Path, pictured: bool) -> None:
        self._key = config.cell_hash
        self._work: Work | None = None
        self._start = functools.partial(Work, config, out, pictured)

    def advance(self) -> Step:
        """Rounds until it is worth a report. What breaks the cell is its result."""
        try:
            if self._work is None:
                self._work = self._start()
            until = time.monotonic() + REPORT_S
            report = self._work.advance(lambda row: time.monotonic() >= until)
        except Exception as failure:
            report = failed(failure, self._key, self._work.experiment if self._work is not None else None)
        return Step({self._key: report}, report.result is not None)

    def save(self, folder: Path) -> dict[str, Any]:
        """A cell keeps its checkpoints in its own folder."""
        return {}

    def load(self, saved: Path | dict[str, Any]) -> None:
        """It goes on from there anyway."""

    def close(self) -> None:
        """Let go of the fleet and the claim on the cell."""
        if self._work is not None:
            self._work.close()
            self._work = None


def failed(failure: Exception, key: str, experiment: Experiment | None) -> Report:
    """The last report of a cell that broke."""
    status = BUSY if isinstance(failure, runs.Busy) else "FAILED"
    error = str(failure) if isinstance(failure, UserError) else runs.describe(failure)
    if experiment is None:
        return Report([], result=Result(status, 0, {}, [], "", key, ""), error=error)
    result = runs.stopped(experiment, status)
    return Report(result.history, result.partition_hash, result, error)


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """What rayfl warns of, for the driver to say: nobody sees a worker's stderr."""
    found: list[str] = []

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = _Handler(logging.WARNING)
    logging.getLogger("rayfl").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("rayfl").removeHandler(handler)
