"""Hands out the samples of a search, and hears what becomes of them."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rayfl import runs
from rayfl.config import ExperimentConfig
from rayfl.progress import Progress
from rayfl.search.config import SearchConfig
from rayfl.search.driver import Driver
from rayfl.search.record import Record
from rayfl.search.study import Study
from rayfl.search.trial import OPEN, STOPPED, Trial, named, status_of
from rayfl.trials import BUSY, Step

_TRIES = 100
"""Samples in a row that were all drawn before: then there are hardly others."""


class Samples(Driver):
    """The trials of a search: those of an earlier call first, then new samples while the budget lasts."""

    def __init__(self, search: SearchConfig, out: Path, record: Record, study: Study, show: Progress) -> None:
        super().__init__(search, out, record, show)
        self._study = study
        self._busy: set[int] = set()
        self._left = [trial for trial in record if self._take_up(trial) == OPEN]
        self.todo = len(self._left) + self._num_new()
        """Trials that may come."""
        self._queue = self._draw()

    def _num_new(self) -> int:
        budget = max(0, self.search.num_trials - len(self.record))
        if self.search.drawn_by != "grid":
            return budget
        new = (point for point in self._study.space.points() if self.record.find(point) is None)
        return sum(1 for _ in itertools.islice(new, budget))

    def _take_up(self, trial: Trial) -> str:
        """Tell the sampler of a trial of an earlier call, or have it run on where it has not ended."""
        if not self._study.space.contains(trial.sample):
            return ""
        status = status_of(self.stored(trial))
        if trial.status in runs.ENDED and status not in runs.ENDED:
            self.record.set(trial, OPEN)
        elif trial.status == OPEN and status in runs.ENDED:
            self.record.set(trial, status)
        if trial.status == OPEN:
            self._study.resume(trial.number, trial.sample)
        else:
            self._study.tell(trial.number, trial.sample, trial.status, self.outcome(trial))
        return trial.status

    def next(self) -> Trial | None:
        """The next trial to run, or None where there is none any more."""
        return None if self.over else next(self._queue, None)

    def _draw(self) -> Iterator[Trial]:
        yield from self._left
        tries = 0
        while len(self.record) < self.search.num_trials:
            number = len(self.record)
            sample = self._study.ask(number, tries)
            if sample is None:
                return
            if self.record.find(sample) is not None:
                self._study.forget(number)
                tries += 1
                if tries == _TRIES and self.search.drawn_by != "grid":
                    self._show.say(f"after {number} trials nothing new is drawn from this space")
                    return
                continue
            tries = 0
            trial = self.record.add(sample)
            if status_of(self.stored(trial)) in runs.ENDED:
                self._end_told(trial, status_of(self.stored(trial)))
            else:
                yield trial

    def configs(self, trial: Trial) -> Sequence[ExperimentConfig]:
        """The cells of a trial, from now on known to the books."""
        configs = self.search.configs(trial.sample)
        for config in configs:
            self.cells.cells[config.cell_hash] = config
            self.cells.labels[config.cell_hash] = f"{self.name(trial)}, seed {config.seed}"
        return configs

    def keys(self, trial: Trial) -> list[str]:
        return [config.cell_hash for config in self.configs(trial)]

    def folder_of(self, key: str) -> Path:
        return runs.cell_folder(self.cells.out, key)

    def name(self, trial: Trial) -> str:
        return f"trial {trial.number} {named(trial.sample)}"

    def took(self, number: int, step: Step) -> None:
        super().took(number, step)
        if any(r.result is not None and r.result.status == BUSY for r in step.reports.values()):
            self._busy.add(number)

    def ended(self, number: int, gave_up: str = "") -> None:
        """A trial goes no further: it is through, or was stopped early, or broke too often, and why."""
        trial = self.record.trials[number]
        keys = self.keys(trial)
        if gave_up:
            self.book.give_up(keys[0], gave_up)
        for key in keys:
            self.book.stop(key, STOPPED)
        if number in self._busy:
            # Somebody else is at work on it: it stays to be run.
            self._study.forget(number)
            self._show.end(self.name(trial), BUSY, {})
            return
        status = status_of(self.stored(trial))
        self._end_told(trial, STOPPED if status == OPEN else status)

    def _end_told(self, trial: Trial, status: str) -> None:
        self._study.tell(trial.number, trial.sample, status, self._end(trial, status))
