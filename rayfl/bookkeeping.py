"""The books of a sweep or a search, which only the driver keeps: MLflow, results, progress."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rayfl import runs
from rayfl.config import ExperimentConfig
from rayfl.experiment import Result
from rayfl.progress import Progress
from rayfl.trials import BUSY, Report

if TYPE_CHECKING:
    from rayfl.tracking import RunLog, Store


class Cells(Protocol):
    """What the books are about. Cells go by their hash; more may come on the way."""

    @property
    def out(self) -> Path:
        """Folder of all results."""

    @property
    def cells(self) -> Mapping[str, ExperimentConfig]:
        """All that may be reported of."""

    @property
    def labels(self) -> Mapping[str, str]:
        """What each is called."""


@dataclass
class _Cell:
    """What the driver knows of a cell under way."""

    log: "RunLog | None"
    history: list[dict[str, float]] = field(default_factory=list)
    partition_hash: str = ""


class Book:
    """Is told what happens to cells."""

    def __init__(
        self,
        plan: Cells,
        store: "Store | None",
        parent: str | None,
        show: Progress,
        folder_of: Callable[[str], Path] | None = None,
    ) -> None:
        """``folder_of`` is where results go of what is no cell; its run in the store is known from there."""
        self._plan, self._store, self._parent, self._show = plan, store, parent, show
        self._are_cells = folder_of is None
        self._folder = folder_of or (lambda key: runs.cell_folder(plan.out, key))
        self._open: dict[str, _Cell] = {}
        self._said: set[str] = set()
        self.interrupted = False
        self._children: dict[str, str] = {}
        self._drawn: set[object] = set()
        if store is not None and parent is not None:
            self._children = store.children(parent)

    def adopt(self, keys: Collection[str]) -> None:
        """Show cells that have ended before below this sweep too."""
        for key in keys:
            self._drawn.add(self._plan.cells[key].data)
            if self._store is None or self._parent is None or key in self._children:
                continue
            found = runs.load(self._folder(key))
            if found is not None and found.result.run_id:
                self._store.adopt(found.result.run_id, self._parent)

    def choose_pictures(self, keys: Collection[str]) -> frozenset[str]:
        """A picture costs as much as a tiny cell, so each way of dividing the data has one, not each seed."""
        if self._store is None:
            return frozenset()
        chosen = set()
        for key in keys:
            data = self._plan.cells[key].data
            if data not in self._drawn:
                self._drawn.add(data)
                chosen.add(key)
        return frozenset(chosen)

    def interrupt(self) -> None:
        """End what is running."""
        self.interrupted = True

    def tick(self) -> None:
        """Called several times a second."""
        self._show.tick()

    def take(self, key: str, report: Report) -> None:
        """Rounds came in."""
        for warning in report.warnings:
            self._say_once(f"{self._plan.labels[key]}: {warning}")
        if report.result is not None and report.result.status == BUSY:
            self._show.end(self._plan.labels[key], BUSY, {})
            self._say_once(f"{self._plan.labels[key]}: {report.error}")
            return
        cell = self._cell(key)
        cell.partition_hash = report.partition_hash or cell.partition_hash
        known = cell.history[-1]["round"] if cell.history else -1
        fresh = [row for row in report.rows if row["round"] > known]
        cell.history += fresh
        for row in fresh:
            self._show.row(self._plan.labels[key], self._plan.cells[key].rounds, row)
        if report.result is not None:
            self._end(key, report.result, report.error)
            if report.picture is not None and self._store is not None and self._parent is not None:
                self._store.attach(self._parent, report.picture)
        elif cell.log is not None and fresh:
            cell.log.rows(fresh, cell.partition_hash)

    def restart(self, key: str, why: str) -> None:
        """A cell's process died, and another takes its place."""
        self._show.say(f"{self._plan.labels[key]}: {why}, going on from the last checkpoint")

    def give_up(self, key: str, why: str) -> None:
        """A cell's process died too often."""
        self._end(key, self._stopped(key, "FAILED"), f"{why}: see fleet and train")

    def stop(self, key: str, status: str) -> None:
        """A cell that is open goes no further; its checkpoints stay."""
        if key in self._open:
            self._end(key, self._stopped(key, status), None)

    def close(self) -> None:
        """Cells that are still open were cut short."""
        for key in list(self._open):
            self.stop(key, "KILLED")
        if self.interrupted:
            self._show.say("interrupted: run the same sweep again to go on from the last checkpoints")

    def _cell(self, key: str) -> _Cell:
        if key not in self._open:
            log = None
            if self._store is not None:
                from rayfl import tracking

                config, label = self._plan.cells[key], self._plan.labels[key]
                run_id = self._children.get(key)
                if not self._are_cells:
                    run_id = runs.read_run_id(self._folder(key), self._store.uri)
                log = tracking.RunLog(self._store, config, run_id, self._parent, label)
                self._children[key] = log.run_id
                runs.write_run_id(self._folder(key), self._store.uri, log.run_id)
            self._open[key] = _Cell(log)
        return self._open[key]

    def _stopped(self, key: str, status: str) -> Result:
        cell = self._cell(key)
        last = dict(cell.history[-1]) if cell.history else {}
        done = int(last.get("round", 0))
        return Result(status, done, last, cell.history, "", key, cell.partition_hash)

    def _end(self, key: str, result: Result, error: str | None) -> None:
        cell = self._cell(key)
        folder = self._folder(key)
        if cell.log is not None and self._store is not None:
            cell.log.end(result, folder, error)
            if cell.log.run_id != self._children[key]:
                # The store was away when the cell began, and gave its run a place later.
                self._children[key] = cell.log.run_id
                runs.write_run_id(folder, self._store.uri, cell.log.run_id)
            result = dataclasses.replace(result, run_id=cell.log.run_id)
        try:
            runs.store(folder, self._plan.cells[key], result, error)
        except OSError as trouble:
            self._say_once(f"can't write '{folder}' ({trouble.strerror}): its cell counts as not run")
        del self._open[key]
        self._show.end(self._plan.labels[key], result.status, result.metrics)
        if error:
            self._show.say(f"{self._plan.labels[key]}: {error.splitlines()[-1]}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._show.say(line)
