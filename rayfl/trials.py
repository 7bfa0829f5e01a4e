"""One cell of a sweep in the process that trains it, and what it sends to the driver."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rayfl import runs
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.experiment import Experiment, Result

BUSY = "BUSY"
"""The status of a cell that another process is at work on."""
_WAIT_S = 10.0
"""A process that Ray gave up may take this long to die and let go of its cell."""
REPORT_S = 0.5
"""Rounds that are quicker than this are sent several at a time."""


@dataclass(frozen=True)
class Report:
    """What a trial sends."""

    rows: list[dict[str, float]]
    partition_hash: str | None = None
    result: Result | None = None
    """Set with the last report."""
    error: str | None = None
    warnings: tuple[str, ...] = ()
    picture: Path | None = None


class Work:
    """A cell in progress."""

    def __init__(self, config: ExperimentConfig, out: Path, pictured: bool) -> None:
        self.experiment: Experiment | None = None
        self._out, self._pictured = out, pictured
        self._folder = runs.cell_folder(out, config.cell_hash)
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._warnings = stack.enter_context(_collected_warnings())
            stack.enter_context(runs.claim(self._folder, _WAIT_S))
            self.experiment = runs.begin(self._folder, config, resume=True)
            stack.callback(self.experiment.close)
            self._stack = stack.pop_all()
        self._rows = self.experiment.rounds(self._folder)
        self._unsent = list(self.experiment.history)

    def advance(self) -> Report:
        """Rounds until it is worth a report."""
        assert self.experiment is not None
        until = time.monotonic() + REPORT_S
        result, picture = None, None
        with runs.disk_trouble(self._folder):
            for row in self._rows:
                self._unsent.append(row)
                if time.monotonic() >= until:
                    break
            if self.experiment.status != "RUNNING":
                result = runs.finish(self.experiment, self._folder)
                picture = runs.picture(self.experiment, self._out) if self._pictured else None
        rows, self._unsent = self._unsent, []
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return Report(rows, self.experiment.data.partition.hash, result, None, warnings, picture)

    def close(self) -> None:
        """Let go of the fleet and the claim on the cell."""
        self._stack.close()


def failed(failure: Exception, cell_hash: str, experiment: Experiment | None) -> Report:
    """The last report of a cell that broke."""
    status = BUSY if isinstance(failure, runs.Busy) else "FAILED"
    error = str(failure) if isinstance(failure, UserError) else runs.describe(failure)
    if experiment is None:
        return Report([], result=Result(status, 0, {}, [], "", cell_hash, ""), error=error)
    result = runs.stopped(experiment, status)
    return Report(result.history, result.partition_hash, result, error)


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
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
