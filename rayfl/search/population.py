"""The members of a population, and what the driver hears of them."""

from pathlib import Path
from typing import Any

from rayfl import runs
from rayfl.progress import Progress
from rayfl.search.config import SearchConfig
from rayfl.search.driver import Driver
from rayfl.search.members import last_state, member_folder, member_key, with_values
from rayfl.search.record import Record
from rayfl.search.trial import OPEN, Trial, named, status_of
from rayfl.seeding import numpy_generator
from rayfl.trials import Step


class Members(Driver):
    """All members of a search, drawn at random at its beginning, each as far as it came in earlier calls."""

    def __init__(self, search: SearchConfig, out: Path, folder: Path, record: Record, show: Progress) -> None:
        super().__init__(search, out, record, show)
        self.folder = folder
        for number in range(len(record), search.num_trials):
            rng = numpy_generator(search.sampler_seed, "member", number)
            record.add({path: domain.draw(rng) for path, domain in search.search.items()})
        states = {trial.number: last_state(member_folder(folder, trial.number)) for trial in record}
        self.values = {
            trial.number: dict(trial.sample if (state := states[trial.number]) is None else state[0])
            for trial in record
        }
        """The present values of each member."""
        for trial in record:
            self._know(trial)
            status = status_of(self.stored(trial))
            if trial.status == OPEN and status in runs.ENDED:
                record.set(trial, status)
        self.left = [trial for trial in record if trial.status == OPEN]
        self.todo = len(self.left)
        """Members that will come."""
        rounds = [0 if (state := states[trial.number]) is None else state[1] for trial in self.left]
        self.rounds_done = min(rounds, default=0)
        """Rounds that all of them have done."""

    def keys(self, trial: Trial) -> list[str]:
        return [member_key(trial.number, seed) for seed in self.search.seeds]

    def folder_of(self, key: str) -> Path:
        return member_folder(self.folder, int(key.split("-")[0])) / key

    def name(self, trial: Trial) -> str:
        return f"member {trial.number}"

    def took(self, number: int, step: Step) -> None:
        assert step.values is not None
        self.values[number] = dict(step.values)
        self._know(self.record.trials[number])
        super().took(number, step)

    def took_over(self, number: int, source: int, t: int, values: dict[str, Any]) -> None:
        """A member goes on from another's state."""
        self._show.say(f"member {number} goes on from member {source} after round {t}: {named(values)}")

    def ended(self, number: int, gave_up: str = "") -> None:
        """A member is through, or broke too often, and why."""
        trial = self.record.trials[number]
        keys = self.keys(trial)
        if gave_up:
            self.book.give_up(keys[0], gave_up)
        for key in keys:
            self.book.stop(key, "KILLED")
        self._end(trial, status_of(self.stored(trial)))
        if self.store is not None:
            from rayfl.tracking.searches import tag_member

            for found in self.stored(trial):
                if found is not None:
                    tag_member(self.store, found.result.run_id, number, self.values[number])

    def _know(self, trial: Trial) -> None:
        """A member's configs are those of its present values."""
        for key, config in zip(self.keys(trial), self.search.configs(trial.sample), strict=True):
            self.cells.cells[key] = with_values(config, self.values[trial.number])
            self.cells.labels[key] = f"{self.name(trial)}, seed {config.seed}"
