"""One sample and what became of it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayfl.report.table import value_label
from rayfl.runs import ENDED, Stored
from rayfl.search.config import Mode, SearchConfig
from rayfl.search.space import Sample

STOPPED = "STOPPED"
"""The status of a trial, or a cell, that a scheduler ended early: it stays so."""
OPEN = "RUNNING"
"""The status of a trial that has not ended, whether somebody is at work on it or not."""
WORST = 1e30
"""Stands for the score of a diverged trial where schedulers compare numbers; smaller than any overflow."""


@dataclass
class Trial:
    """A sample, run once with each seed."""

    number: int
    """From 0, in the order drawn."""
    sample: Sample
    status: str = OPEN
    """RUNNING, FINISHED, STOPPED, DIVERGED or FAILED."""
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the seeds of a trial came to."""

    rounds: int
    """Rounds that all seeds have done."""
    scores: Mapping[str, tuple[float, ...]]
    """Of each metric, the last value of each seed."""
    curve: Mapping[str, Mapping[int, float]] = field(repr=False)
    """Of each metric, the mean over seeds by round."""

    def mean(self, metric: str) -> float:
        """The mean over seeds; NaN where there is nothing to average."""
        values = self.scores[metric]
        return statistics.fmean(values) if values else math.nan

    def std(self, metric: str) -> float:
        """The sample standard deviation over seeds; NaN for a single one."""
        values = self.scores[metric]
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def outcome(histories: Sequence[Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> Outcome:
    """The outcome of the seeds' rows, as far as all of them have come."""
    scored = [{int(row["round"]): row for row in history if _scored(row, metrics)} for history in histories]
    shared = sorted(set.intersection(*map(set, scored))) if scored else []
    curve = {m: {t: statistics.fmean(rows[t][m] for rows in scored) for t in shared} for m in metrics}
    last = {m: tuple(rows[shared[-1]][m] for rows in scored) if shared else () for m in metrics}
    return Outcome(shared[-1] if shared else 0, last, curve)


def _scored(row: Mapping[str, float], metrics: Sequence[str]) -> bool:
    return row["round"] > 0 and all(metric in row for metric in metrics)


def comparable(value: float, mode: Mode) -> float:
    """The value, or what is worse than any value where it is not finite."""
    if math.isfinite(value):
        return value
    return -WORST if mode == "max" else WORST


def status_of(stored: Sequence[Stored | None]) -> str:
    """The status of a trial whose cells are these: RUNNING until they have ended."""
    statuses = [found.result.status if found else OPEN for found in stored]
    for status in ("DIVERGED", "FAILED"):
        if status in statuses:
            return status
    return "FINISHED" if all(status in ENDED for status in statuses) else OPEN


def named(sample: Mapping[str, Any]) -> str:
    """A sample in a few words: ``lr=0.013 momentum=0.9``; full paths where the last parts are ambiguous."""
    leaves = [path.rsplit(".", 1)[-1] for path in sample]
    shown = leaves if len(set(leaves)) == len(leaves) else list(sample)
    return " ".join(
        value_text(value) if isinstance(value, Mapping) else f"{name}={value_text(value)}"
        for name, value in zip(shown, sample.values(), strict=True)
    )


def value_text(value: Any) -> str:
    """A value to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else value_label(value)


def said(search: SearchConfig, status: str, result: Outcome) -> str:
    """What a trial came to in a few words, to follow its status."""
    if status not in ("FINISHED", STOPPED) or not result.rounds:
        return ""
    parts = [f"{metric} {score_text(result.mean(metric), result.std(metric))}" for metric in search.metric]
    where = f" in round {result.rounds}" if status == STOPPED else ""
    return f"{where}, {', '.join(parts)}"


def score_text(mean: float, std: float) -> str:
    """A mean with its spread, to the digits that matter."""
    large = abs(mean) >= 1000
    shown = f"{mean:.4g}" if large else f"{mean:.4f}"
    if math.isnan(std):
        return shown
    return f"{shown} ± {std:.2g}" if large else f"{shown} ± {std:.4f}"
