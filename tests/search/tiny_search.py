"""Searches small enough to run in a second, and Tune's part played in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfl.bookkeeping import Book
from rayfl.loading.searches import load_search
from rayfl.progress import Silent
from rayfl.search.config import SearchConfig
from rayfl.search.record import Record, search_folder
from rayfl.search.samples import Samples
from rayfl.search.study import Study
from rayfl.search.work import SampleWork

BASE = {
    "rounds": 4,
    "checkpoint_every": 1,
    "tracking.enabled": False,
    "data.name": "synthetic",
    "data.synthetic": {"num_train": 120, "num_test": 40, "num_classes": 3, "height": 4, "width": 4},
    "data.num_clients": 3,
    "data.partition.min_size": 1,
    "model.name": "mlp",
    "model.width": 0.1,
    "algorithm.batch_size": 8,
}
LR = {"algorithm.lr": {"loguniform": [0.001, 1.0]}}


def search(
    space: Mapping[str, Any] = LR, settings: Mapping[str, Any] | None = None, **keys: Any
) -> SearchConfig:
    """A search of tiny trials."""
    plain = {"name": "s", "set": {**BASE, **(settings or {})}, "search": dict(space), "trials": 4}
    return load_search({**plain, **keys})


class Notes(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ended: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def end(self, label: str, status: str, metrics: Mapping[str, float]) -> None:
        self.ended.append(f"{label}: {status}")


def opened(plan: SearchConfig, out: Path) -> Samples:
    """What the driver of a search has before it starts, in a folder where earlier calls left their traces."""
    folder = search_folder(out, plan.name)
    folder.mkdir(parents=True, exist_ok=True)
    (out / "cells").mkdir(exist_ok=True)
    samples = Samples(plan, out, Record(plan, folder), Study(plan, plan.space()), Notes())
    samples.book = Book(samples.cells, None, None, Silent(), samples.folder_of)
    return samples


def run(samples: Samples, most_steps: int = 1000) -> int:
    """Run the trials one after another, as Tune would, for so many steps; how many were done."""
    done = 0
    while (trial := samples.next()) is not None:
        plan = samples.search
        work = SampleWork(samples.configs(trial), samples.cells.out, frozenset(), plan.metric, True)
        while True:
            if done == most_steps:
                work.close()
                return done
            step = work.advance()
            done += 1
            samples.took(trial.number, step)
            if step.done:
                break
        work.close()
        samples.ended(trial.number)
    return done
