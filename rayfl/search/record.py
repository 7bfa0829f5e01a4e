"""What a search has drawn so far, on disk: whoever issues the search again goes on from it.

<out>/searches/<name>/trials.json   every sample in the order drawn, with the status of its trial
                      best.yaml     the best config: see rayfl.search.best
                      members/      states of a population: see rayfl.search.members

Scores are not kept here: they are in the cells' own results.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rayfl import checkpoint
from rayfl.errors import UserError
from rayfl.search.config import SearchConfig
from rayfl.search.space import Sample, key_of
from rayfl.search.trial import OPEN, Trial


def search_folder(out: Path, name: str) -> Path:
    """Where a search keeps what belongs to no cell."""
    return out / "searches" / name


class Record:
    """The trials of a search in the order drawn; every change is on disk when the call returns."""

    def __init__(self, search: SearchConfig, folder: Path) -> None:
        """Take up the record of an earlier call. Raises UserError where that was another question."""
        self._path = folder / "trials.json"
        self._asks = _question(search)
        self.trials: list[Trial] = []
        self._keys: dict[str, Trial] = {}
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise UserError(
                f"'{self._path}' is damaged ({error}): move it away to start the search anew (finished cells "
                f"are kept), or use another name"
            ) from error
        if content["asks"] != self._asks:
            raise UserError(
                f"the search '{search.name}' in '{folder}' was another one, "
                f"{_difference(content['asks'], self._asks)}: use another name=..., or another --out"
            )
        for entry in content["trials"]:
            self._keep(Trial(**entry))

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def find(self, sample: Sample) -> Trial | None:
        """The trial of a sample, if it was drawn before."""
        return self._keys.get(key_of(sample))

    def add(self, sample: Sample) -> Trial:
        """A new trial."""
        trial = Trial(len(self.trials), sample)
        self._keep(trial)
        self.write()
        return trial

    def set(self, trial: Trial, status: str, error: str = "") -> None:
        """A trial has ended, or is to be run again."""
        trial.status, trial.error = status, "" if status == OPEN else error
        self.write()

    def write(self) -> None:
        """Put everything on disk."""
        content = {"asks": self._asks, "trials": [asdict(trial) for trial in self.trials]}
        checkpoint.write_whole(self._path, json.dumps(content, indent=1).encode())

    def _keep(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._keys[key_of(trial.sample)] = trial


def _question(search: SearchConfig) -> dict[str, object]:
    """What must stay the same for scores to be comparable. Budget, sampler and values may change."""
    cells = [config.cell_hash for config in search.configs({})]
    population = search.scheduler == "pbt"
    return {"cells": cells, "metric": dict(search.metric), "population": population}


def _difference(before: dict[str, object], now: dict[str, object]) -> str:
    said = {
        "cells": "its settings or seeds differ",
        "metric": f"its metric was {before['metric']}",
        "population": "only one of them is by pbt",
    }
    return next(said[key] for key in said if before[key] != now[key])
