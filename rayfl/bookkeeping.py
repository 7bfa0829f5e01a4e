"""The books of a sweep, which only the driver keeps: MLflow, results, progress."""

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayfl import runs
from rayfl.experiment import Result
from rayfl.progress import Progress
from rayfl.trials import BUSY, Report

if TYPE_CHECKING:
    from rayfl.sweeps import Plan
    from rayfl.tracking import RunLog, Store


@dataclass
class _Cell:
    """What the driver knows of a cell under way."""

    log: "RunLog | None"
    history: list[dict[str, float]] = field(default_factory=list)
    partition_hash: str = ""


class Book:
    """Is told what happens to the cells of a sweep."""

    def __init__(self, plan: "Plan", store: "Store | None", parent: str | None, show: Progress) -> None:
        self._plan, self._store, self._parent, self._show = plan, store, parent, show
        self._open: dict[str, _Cell] = {}
        self._said: set[str] = set()
        self.interrupted = False
        self._children: dict[str, str] = {}
        if store is not None and parent is not None:
            self._children = store.children(parent)
            for key in plan.ended:
                found = runs.load(runs.cell_folder(plan.out, key))
                if found is not None and found.result.run_id and key not in self._children:
                    store.adopt(found.result.run_id, parent)
        self.pictured = self._choose_pictures()

    def _choose_pictures(self) -> frozenset[str]:
        """A picture costs as much as a tiny cell, so each way of dividing the data has one, not each seed."""
        if self._store is None:
            return frozenset()
        first: dict[object, str] = {}
        for key in self._plan.todo:
            first.setdefault(self._plan.cells[key].data, key)
        done = {self._plan.cells[key].data for key in self._plan.ended}
        return frozenset(key for data, key in first.items() if data not in done)

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

    def restart(self, key: str) -> None:
        """A cell's process died, and another takes its place."""
        self._show.say(f"{self._plan.labels[key]}: its process died, going on from the last checkpoint")

    def give_up(self, key: str, deaths: int) -> None:
        """A cell's process died too often."""
        error = f"the process died {deaths} times (killed, or out of memory): see fleet and train"
        self._end(key, self._stopped(key, "FAILED"), error)

    def close(self) -> None:
        """Cells that are still open were cut short; their checkpoints stay."""
        for key in list(self._open):
            self._end(key, self._stopped(key, "KILLED"), None)
        if self.interrupted:
            self._show.say("interrupted: run the same sweep again to go on from the last checkpoints")

    def _cell(self, key: str) -> _Cell:
        if key not in self._open:
            log = None
            if self._store is not None:
                from rayfl import tracking

                config, label = self._plan.cells[key], self._plan.labels[key]
                log = tracking.RunLog(self._store, config, self._children.get(key), self._parent, label)
                self._children[key] = log.run_id
                runs.write_run_id(runs.cell_folder(self._plan.out, key), self._store.uri, log.run_id)
            self._open[key] = _Cell(log)
        return self._open[key]

    def _stopped(self, key: str, status: str) -> Result:
        cell = self._cell(key)
        last = dict(cell.history[-1]) if cell.history else {}
        done = int(last.get("round", 0))
        return Result(status, done, last, cell.history, "", key, cell.partition_hash)

    def _end(self, key: str, result: Result, error: str | None) -> None:
        cell = self._cell(key)
        folder = runs.cell_folder(self._plan.out, key)
        if cell.log is not None:
            result = dataclasses.replace(result, run_id=cell.log.run_id)
            cell.log.end(result, folder, error)
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
