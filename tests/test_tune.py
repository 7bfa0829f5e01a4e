"""Searches on Ray Tune: schedulers, populations, a killed driver, and what MLflow has of them."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl import checkpoint, runs
from rayfl.loading.experiments import load_experiment
from rayfl.loading.searches import load_search
from rayfl.progress import Silent
from rayfl.search.config import SearchConfig
from rayfl.search.run import run_search

BASE = {
    "rounds": 6,
    "checkpoint_every": 2,
    "data.name": "synthetic",
    "data.synthetic": {"num_train": 120, "num_test": 40, "num_classes": 3, "height": 4, "width": 4},
    "data.num_clients": 3,
    "data.partition.min_size": 1,
    "model.name": "mlp",
    "model.width": 0.1,
    "algorithm.batch_size": 8,
}
METRIC = "global/val_accuracy"

SLOW = """
    import os, sys, time
    from pathlib import Path
    from rayfl.algorithms.fedavg import FedAvg

    class Slow(FedAvg):
        def round(self, t):
            if (Path(__file__).parent / "slow").exists() and self.config.lr > 0.15:
                time.sleep(0.5)
            super().round(t)
"""
DRIVER = """
    import sys
    from rayfl.loading.searches import load_search
    from rayfl.search.run import run_search
    run_search(load_search(sys.argv[1]), sys.argv[2])
"""


class Notes(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def search(space: Mapping[str, Any], settings: Mapping[str, Any] | None = None, **keys: Any) -> SearchConfig:
    """A search of tiny trials."""
    return load_search({"name": "s", "set": {**BASE, **(settings or {})}, "search": dict(space), **keys})


def sql(out: Path, query: str) -> list[Any]:
    """Ask the store behind MLflow's back."""
    connection = sqlite3.connect(out / "mlflow.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.ray
def test_poor_trials_are_stopped_and_nothing_runs_twice(ray_cluster: None, tmp_path: Path) -> None:
    """One at a time, whoever is worse than the first in an evaluated round, here the second, is stopped."""
    space = {"algorithm.lr": {"choice": [0.3, 1e-6, 1e-5]}}
    keys: dict[str, Any] = {"sampler": "grid", "scheduler": "asha", "seeds": [0, 1], "max_concurrent": 1}
    plan = search(space, {"eval_every": 2}, **keys)
    found = run_search(plan, tmp_path, show=Notes())
    trials = found.trials.sort_values("trial")
    assert trials.status.tolist() == ["FINISHED", "STOPPED", "STOPPED"]
    assert trials.rounds.tolist() == [6, 2, 2]
    assert [best["values"] for best in found.best] == [{"algorithm.lr": 0.3}]

    parents = sql(tmp_path, "select distinct value from tags where key = 'mlflow.parentRunId'")
    assert len(parents) == 1
    status = sql(tmp_path, "select value, count(*) from tags where key = 'status' group by value")
    assert dict(status) == {"FINISHED": 2, "STOPPED": 4}

    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}
    notes = Notes()
    again = run_search(plan, tmp_path, show=notes)
    assert notes.lines == ["s: 3 trials ended, 0 to run"]
    assert again.trials.equals(found.trials)
    assert {path: path.stat().st_mtime_ns for path in before} == before

    # What the store has of a search, another one starts with.
    warm = search({"algorithm.lr": {"uniform": [0.1, 0.5]}}, warm_start="s", name="w", trials=1)
    notes = Notes()
    run_search(warm, tmp_path, show=notes)
    assert notes.lines[0] == "w: 1 sample known from 's'"


@pytest.mark.ray
def test_members_take_over_states_and_their_values_are_in_the_store(
    ray_cluster: None, tmp_path: Path
) -> None:
    plan = search(
        {"algorithm.lr": {"choice": [1e-6, 1e-5, 0.1, 0.3]}}, scheduler="pbt", perturb_every=2, trials=4
    )
    notes = Notes()
    found = run_search(plan, tmp_path, show=notes)
    assert found.trials.status.tolist() == ["FINISHED"] * 4
    assert any("goes on from member" in line for line in notes.lines)
    points = sql(tmp_path, "select run_uuid, step, value from metrics where key = 'hp/algorithm.lr'")
    assert {step for _, step, _ in points} == set(range(7))
    changed = {run for run, _, _ in points if len({v for r, _, v in points if r == run}) > 1}
    assert changed
    # Whoever took over has the rows of whom it took over from, up to then.
    members = tmp_path / "searches" / "s" / "members"
    histories = {
        path.parent.name: json.loads(path.read_text())["history"] for path in members.glob("*/*/result.json")
    }
    assert all([row["round"] for row in rows] == list(range(7)) for rows in histories.values())
    losses = [rows[1]["global/test_loss"] for rows in histories.values()]
    assert len(set(losses)) < 4
    best = load_experiment(str(found.presets[0]))
    assert best.algorithm.lr == found.best[0]["values"]["algorithm.lr"]
    assert "members' states" in found.presets[0].read_text()
    notes = Notes()
    assert run_search(plan, tmp_path, show=notes).trials.equals(found.trials)
    assert notes.lines == ["s: 4 trials ended, 0 to run"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where own_slow is, whose method is slow as long as a file says so."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "own_slow.py").write_text(textwrap.dedent(SLOW))
    (folder / "slow").write_text("")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("own_slow", None)


def run_and_kill(plain: Mapping[str, Any], home: Path, out: Path, when: Callable[[str], bool]) -> Path:
    """Run a search on this Ray and kill its driver once what it has said is right; its file."""
    import ray

    file, said = home / "s.yaml", home / "said"
    file.write_text(json.dumps(plain))
    paths = os.pathsep.join([str(home), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    arguments = [sys.executable, "-c", textwrap.dedent(DRIVER), str(file), str(out)]
    with said.open("w") as stderr:
        driver = subprocess.Popen(arguments, env=environment, cwd=home, stderr=stderr)
    try:
        while not when(said.read_text()):
            assert driver.poll() is None, said.read_text()
            time.sleep(0.1)
    finally:
        driver.kill()
        driver.wait()
    (home / "slow").unlink()
    return file


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_driver_loses_nothing(ray_cluster: None, tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out"

    def slow_ones() -> list[Path]:
        """Folders of slow cells that have a checkpoint."""
        folders = [path.parent for path in out.glob("cells/*/checkpoint-*.pt")]
        return [f for f in folders if json.loads((f / "config.json").read_text())["algorithm"]["lr"] == 0.2]

    space = {"algorithm.lr": {"choice": [0.1, 0.2]}}
    settings = {"algorithm.name": "own_slow:Slow", "checkpoint_every": 1}
    plain = {"name": "s", "set": {**BASE, **settings}, "search": space, "sampler": "grid", "seeds": [0, 1]}
    file = run_and_kill(plain, home, out, lambda said: bool(slow_ones()))
    slow = slow_ones()[0]
    done = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}
    state = checkpoint.load_latest(slow)
    assert state is not None
    assert state["round"] >= 1
    plan = load_search(file)
    found = run_search(plan, out, show=Notes())
    assert found.trials.status.tolist() == ["FINISHED"] * 2
    assert all(path.stat().st_mtime_ns == at for path, at in done.items())
    for trial in range(2):
        for config in plan.configs({"algorithm.lr": [0.1, 0.2][trial]}):
            stored = runs.load(runs.cell_folder(out, config.cell_hash))
            assert stored is not None
            alone = runs.execute(config, tmp_path / "alone")
            assert alone.weights_sha256 == stored.result.weights_sha256
    assert len(sql(out, "select run_uuid from tags where key = 'cell_hash'")) == 4


def moments(history: list[dict[str, float]]) -> list[tuple[float, float]]:
    """What tells a round from the same round run again: how long it took."""
    return [(row["round"], row["wall/round_s"]) for row in history]


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_population_loses_nothing(ray_cluster: None, tmp_path: Path, home: Path) -> None:
    """Killed when one member has gone on from another's state: each goes on from its own last state."""
    out = tmp_path / "out"
    space = {"algorithm.lr": {"uniform": [0.2, 0.9]}}
    settings = {"algorithm.name": "own_slow:Slow", "checkpoint_every": 1, "rounds": 10}
    plain = {"name": "s", "set": {**BASE, **settings}, "search": space, "scheduler": "pbt", "trials": 4}
    file = run_and_kill(plain, home, out, lambda said: "goes on from member" in said)
    members = out / "searches" / "s" / "members"
    states = [checkpoint.load_latest(members / str(number)) for number in range(4)]
    before = [moments(state["seeds"][0]["history"]) if state is not None else [] for state in states]
    assert max(map(len, before)) > 2

    notes = Notes()
    found = run_search(load_search(file), out, show=notes)
    assert notes.lines[0].startswith("s: 0 trials ended, 4 to run")
    assert found.trials.status.tolist() == ["FINISHED"] * 4
    kept = {moment for history in before for moment in history}
    shared = min(map(len, before))
    for number in range(4):
        stored = runs.load(members / str(number) / f"{number}-0")
        assert stored is not None
        assert [row["round"] for row in stored.result.history] == list(range(11))
        assert set(moments(stored.result.history)[:shared]) <= kept
    points = sql(out, "select step from metrics where key = 'comm/total_bytes' order by run_uuid, step")
    assert [step for (step,) in points] == [*range(11)] * 4
    parents = "select count(*) from tags where key = 'mlflow.parentRunId' group by value"
    assert sql(out, parents) == [(4,)]
