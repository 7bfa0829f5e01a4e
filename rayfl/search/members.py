"""One member of a population (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846) in its own process.

A member is no cell: it goes on from another member's state and under other values, so no config has its
results. Its rows tell the values of their round as ``hp/<dotted path>``.

<out>/searches/<name>/members/<number>/checkpoint-*.pt   the states of its seeds, and their values
                                       <number>-<seed>/  the files of a cell's folder
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfl import checkpoint, runs
from rayfl.config import ExperimentConfig
from rayfl.experiment import Experiment
from rayfl.search.config import Mode, SearchConfig
from rayfl.search.space import Domain, Sample
from rayfl.search.trial import comparable
from rayfl.trials import WAIT_S, Report, Step, collected_warnings, failed


def member_folder(folder: Path, number: int) -> Path:
    """Where a member of a search keeps its states."""
    return folder / "members" / str(number)


def member_key(number: int, seed: int) -> str:
    """What one seed of a member is called."""
    return f"{number}-{seed}"


def with_values(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """The config with other knobs of its method."""
    knobs = {path.removeprefix("algorithm."): value for path, value in values.items()}
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, **knobs))


def last_state(folder: Path) -> tuple[Sample, int] | None:
    """Values and rounds of a member's last state, if it has one."""
    with runs.claim(folder, WAIT_S):
        state = checkpoint.load_latest(folder)
    return None if state is None else (state["values"], state["seeds"][0]["round"])


def moved(search: SearchConfig, values: Mapping[str, Any], rng: np.random.Generator) -> Sample:
    """Each value nudged by a fifth up or down (a choice: to a neighbour), or sometimes drawn anew."""
    anew = 0.25 if search.resample is None else search.resample
    return {
        path: domain.draw(rng) if rng.random() < anew else _nudged(domain, values[path], rng)
        for path, domain in search.search.items()
    }


def _nudged(domain: Domain, value: Any, rng: np.random.Generator) -> Any:
    up = bool(rng.integers(2))
    if domain.kind in ("uniform", "loguniform"):
        return domain.nearest(value * (1.2 if up else 0.8))
    # Values with gaps move by a fifth too, and at least to the next one.
    options = sorted(domain.values())
    target = value * (1.2 if up else 0.8)
    beyond = [v for v in options if (v > value if up else v < value)]
    return min(beyond, key=lambda v: abs(v - target)) if beyond else value


class MemberWork:
    """The seeds of a member, side by side.

    Its folder is claimed while a call lasts: a process that Ray gave up, or whose driver died, may be in the
    middle of one.
    """

    def __init__(
        self,
        number: int,
        configs: Sequence[ExperimentConfig],
        folder: Path,
        metric: Mapping[str, Mode],
        values: Mapping[str, Any],
    ) -> None:
        self._configs = {member_key(number, c.seed): with_values(c, values) for c in configs}
        self._folder, self._values = folder, dict(values)
        self._metric, self._mode = next(iter(metric.items()))
        self._experiments: dict[str, Experiment] = {}
        self._rows: dict[str, Any] = {}
        self._unsent: dict[str, list[dict[str, float]]] = {}
        """Rounds of an earlier call, whose driver may have died before it wrote them down."""
        self._stack = contextlib.ExitStack()
        self._given: dict[str, Any] | None = None

    def advance(self) -> Step:
        """All seeds to the next evaluated round. What breaks one is its result."""
        reports: dict[str, Report] = {}
        key, t = next(iter(self._configs)), 0
        try:
            with runs.claim(self._folder, WAIT_S):
                if not self._experiments:
                    self._open()
                first = self._experiments[key]
                every = first.config.eval_every
                t = min(first.config.rounds, (first.round // every + 1) * every)
                for key, experiment in self._experiments.items():
                    reports[key] = self._forward(key, experiment, t)
                if first.status == "RUNNING" and t % first.config.checkpoint_every == 0:
                    self._keep()
        except Exception as failure:
            reports[key] = failed(failure, key, self._experiments.get(key))
        ends = [report.result.status for report in reports.values() if report.result is not None]
        broken = any(status != "FINISHED" for status in ends)
        numbers = {"round": t, "score": comparable(self._score(broken), self._mode)}
        return Step(reports, bool(ends), numbers, self._values)

    def save(self, folder: Path) -> None:
        """A state that another member can go on from; this one's own folder has it too."""
        with runs.claim(self._folder, WAIT_S):
            self._keep()
        checkpoint.save(folder, 0, self._state())

    def load(self, saved: Path | dict[str, Any]) -> None:
        """Go on from a state under this member's values."""
        assert isinstance(saved, Path)
        self._given = checkpoint.load_latest(saved)

    def close(self) -> None:
        """Keep what was done, and let go of the fleets."""
        if self._experiments and all(e.status == "RUNNING" for e in self._experiments.values()):
            with runs.claim(self._folder, WAIT_S):
                self._keep()
        self._stack.close()
        self._experiments = {}

    def _open(self) -> None:
        own = checkpoint.load_latest(self._folder) if self._given is None else None
        state = self._given or (own if own is not None and own["values"] == self._values else None)
        with contextlib.ExitStack() as stack:
            self._warnings = stack.enter_context(collected_warnings())
            for at, (key, config) in enumerate(self._configs.items()):
                experiment = Experiment(config)
                stack.callback(experiment.close)
                if state is not None:
                    experiment.load_state_dict(state["seeds"][at], other_config=True)
                self._experiments[key] = experiment
                self._rows[key] = experiment.rounds()
                self._unsent[key] = list(experiment.history) if own is not None else []
                (self._folder / key).mkdir(parents=True, exist_ok=True)
            self._stack = stack.pop_all()
        if self._given is not None:
            self._given = None
            self._keep()

    def _forward(self, key: str, experiment: Experiment, t: int) -> Report:
        rows = self._unsent.pop(key, [])
        values = {f"hp/{path}": float(value) for path, value in self._values.items()}
        with runs.disk_trouble(self._folder):
            for row in self._rows[key]:
                row.update(values)
                rows.append(row)
                if row["round"] >= t:
                    break
            result = runs.finish(experiment, self._folder / key) if experiment.status != "RUNNING" else None
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return Report(rows, experiment.data.partition.hash, result, None, warnings)

    def _score(self, broken: bool) -> float:
        if broken or not self._experiments:
            return float("nan")
        return statistics.fmean(
            e.history[-1].get(self._metric, float("nan")) for e in self._experiments.values()
        )

    def _state(self) -> dict[str, Any]:
        return {"values": self._values, "seeds": [e.state_dict() for e in self._experiments.values()]}

    def _keep(self) -> None:
        # By number of states, not of rounds: a member may go back to an earlier round of another's.
        numbers = [int(path.stem.rpartition("-")[2]) for path in self._folder.glob("checkpoint-*.pt")]
        checkpoint.save(self._folder, max(numbers, default=-1) + 1, self._state())
