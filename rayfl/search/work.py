"""One trial of a search in the process that trains it: a sample, its seeds side by side."""

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfl import runs
from rayfl.config import ExperimentConfig
from rayfl.errors import RunFailed
from rayfl.search.config import Mode
from rayfl.search.trial import comparable
from rayfl.trials import REPORT_S, Report, Step, Work, failed

Rows = Sequence[Mapping[str, float]]


class SampleWork:
    """The cells of a sample, all at the same round after every report.

    A cell that has finished before is not run again: its rows are read. Where one fails or diverges, the
    trial ends.
    """

    def __init__(
        self,
        configs: Sequence[ExperimentConfig],
        out: Path,
        pictured: frozenset[str],
        metric: Mapping[str, Mode],
        every_round: bool,
    ) -> None:
        """With ``every_round`` each evaluated round is reported by itself, for a scheduler to judge."""
        self._configs = {config.cell_hash: config for config in configs}
        self._out, self._pictured, self._metric, self._every_round = out, pictured, metric, every_round
        self._works: dict[str, Work] = {}
        self._over: dict[str, Rows] = {}
        """The rows of cells that need no more work."""
        self._broken = False

    def advance(self) -> Step:
        """All seeds to the next evaluated round, or through several where rounds are quick."""
        until = time.monotonic() + (0.0 if self._every_round else REPORT_S)
        reports: dict[str, Report] = {}
        while True:
            t = self._forward(reports)
            done = self._broken or len(self._over) == len(self._configs)
            if done or time.monotonic() >= until:
                return Step(reports, done, {"round": t, "score": self._score(t)})

    def save(self, folder: Path) -> dict[str, Any]:
        """Each cell's checkpoint goes to its own folder, where any process finds it; then they are let go."""
        self.close()
        return {}

    def load(self, saved: Path | dict[str, Any]) -> None:
        """The cells' own checkpoints are found anyway."""

    def close(self) -> None:
        """Keep what was done of each cell, and let go of them."""
        for work in self._works.values():
            try:
                work.checkpoint()
            finally:
                work.close()
        self._works = {}

    def _forward(self, reports: dict[str, Report]) -> int:
        """One evaluated round more of those that are the furthest behind, and who is behind it too."""
        self._open(reports)
        t = self._due(min(self._reached(key) for key in self._configs)) if not self._broken else 0
        for key in list(self._works):
            if not self._broken and (self._reached(key) < t or self._status(key) != "RUNNING"):
                self._guarded(reports, key, functools.partial(self._advanced, key, t))
        return t

    def _open(self, reports: dict[str, Report]) -> None:
        for key, config in self._configs.items():
            if key in self._works or key in self._over or self._broken:
                continue
            stored = runs.load(runs.cell_folder(self._out, key))
            if stored is not None and stored.result.status in runs.ENDED:
                self._over[key] = stored.result.history
                self._broken |= stored.result.status != "FINISHED"
                continue
            self._guarded(reports, key, functools.partial(self._started, key, config))

    def _guarded(self, reports: dict[str, Report], key: str, work: Callable[[], Report | None]) -> None:
        """What breaks a cell is its result."""
        try:
            report = work()
        except Exception as failure:
            broken = self._works.pop(key, None)
            report = failed(failure, key, broken.experiment if broken is not None else None)
            if broken is not None:
                broken.close()
            self._broken = True
        if report is not None:
            reports[key] = _joined(reports.get(key), report)

    def _started(self, key: str, config: ExperimentConfig) -> None:
        self._works[key] = Work(config, self._out, key in self._pictured)

    def _advanced(self, key: str, t: int) -> Report:
        report = self._works[key].advance(lambda row: row["round"] >= t)
        if report.result is not None:
            self._over[key] = report.result.history
            self._works.pop(key).close()
            self._broken |= report.result.status != "FINISHED"
        if not self._broken:
            self._check_metrics(key, t)
        return report

    def _check_metrics(self, key: str, t: int) -> None:
        row = self._row(key, t)
        for name in self._metric:
            if name not in row:
                raise RunFailed(f"'{name}' was not reported in round {t}: choose a metric that always is")

    def _due(self, t: int) -> int:
        """The next evaluated round after ``t``."""
        config = next(iter(self._configs.values()))
        return min(config.rounds, (max(t, 0) // config.eval_every + 1) * config.eval_every)

    def _reached(self, key: str) -> int:
        rows = self._rows(key)
        return int(rows[-1]["round"]) if rows else -1

    def _status(self, key: str) -> str:
        experiment = self._works[key].experiment
        assert experiment is not None
        return experiment.status

    def _rows(self, key: str) -> Rows:
        if key in self._over:
            return self._over[key]
        experiment = self._works[key].experiment
        assert experiment is not None
        return experiment.history

    def _row(self, key: str, t: int) -> Mapping[str, float]:
        return next((row for row in reversed(self._rows(key)) if row["round"] == t), {})

    def _score(self, t: int) -> float:
        """The mean over seeds of the first metric, comparable whatever it is."""
        name, mode = next(iter(self._metric.items()))
        values = (
            [math.nan] if self._broken else [self._row(key, t).get(name, math.nan) for key in self._configs]
        )
        return comparable(statistics.fmean(values), mode)


def _joined(first: Report | None, second: Report) -> Report:
    if first is None:
        return second
    return Report(
        [*first.rows, *second.rows],
        second.partition_hash,
        second.result,
        second.error,
        first.warnings + second.warnings,
        second.picture or first.picture,
    )
