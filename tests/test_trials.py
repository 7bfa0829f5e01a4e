"""Sweeps: a cell is a run, whatever happens around it."""

import dataclasses
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl import runs, sweeps
from rayfl.config import SweepConfig, TrackingConfig
from rayfl.errors import UserError
from rayfl.loading.sweeps import load_sweep
from rayfl.progress import Silent

BASE = {
    "rounds": 20,
    "checkpoint_every": 2,
    "data.name": "synthetic",
    "data.synthetic": {"num_train": 120, "num_test": 40, "num_classes": 3, "height": 4, "width": 4},
    "data.num_clients": 3,
    "data.partition.min_size": 1,
    "model.name": "mlp",
    "model.width": 0.1,
    "algorithm.batch_size": 8,
}
LAWS = [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5}]
GRID = {"algorithm.name": ["fedavg", "splitfed_v1"], "data.partition": LAWS, "seed": [0, 1]}

METHODS = """
    import os, signal, time
    from pathlib import Path
    from rayfl.algorithms.fedavg import FedAvg

    FLAGS = Path(__file__).parent

    class Broken(FedAvg):
        def round(self, t):
            if t == 3 and (FLAGS / "broken").exists():
                raise ValueError("boom in round 3")
            super().round(t)

    class Mortal(FedAvg):
        def round(self, t):
            if t == 5 and (FLAGS / "mortal").exists():
                (FLAGS / "mortal").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            super().round(t)

    class Slow(FedAvg):
        def round(self, t):
            if (FLAGS / "slow").exists():
                time.sleep(0.1)
            super().round(t)

    class Meeting(FedAvg):
        def round(self, t):
            (FLAGS / f"met-{self.config.lr}").write_text("")
            while len(list(FLAGS.glob("met-*"))) < 2:
                time.sleep(0.05)
            super().round(t)
"""
DRIVER = """
    import sys
    from rayfl.loading.sweeps import load_sweep
    from rayfl.sweeps import run_sweep
    run_sweep(load_sweep(sys.argv[1]), sys.argv[2])
"""


class Notes(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ended: dict[str, str] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)

    def end(self, label: str, status: str, metrics: Mapping[str, float]) -> None:
        self.ended[label] = status


def sweep(name: str, grid: Mapping[str, Any], most: int | None = None, **settings: Any) -> SweepConfig:
    """A sweep of tiny cells, at most so many at once."""
    plain = {"name": name, "set": {**BASE, **settings}, "grid": dict(grid), "max_concurrent": most}
    return load_sweep(plain)


def sql(database: Path, query: str) -> list[Any]:
    """Ask the store behind MLflow's back."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def times(out: Path) -> dict[str, int]:
    """When each cell ended."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}


CHILDREN = "select value, run_uuid from tags where key = 'cell_hash'"


@pytest.fixture(scope="module")
def grid(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight cells of 20 rounds, side by side, and where."""
    out = tmp_path_factory.mktemp("grid")
    notes = Notes()
    return sweeps.run_sweep(sweep("grid", GRID), out, show=notes), out, notes


@pytest.mark.ray
def test_every_point_is_in_the_store_once(grid: Any) -> None:
    table, out, notes = grid
    assert table.status.tolist() == ["FINISHED"] * 8
    assert notes.lines[0] == "grid: 8 cells: 0 finished, 8 to run, 2 at once"
    database = out / "mlflow.db"
    counts = sql(
        database,
        "select run_uuid, count(*) from metrics where key = 'global/test_accuracy' group by run_uuid",
    )
    assert sorted(run for run, _ in counts) == sorted(table.run_id)
    assert {count for _, count in counts} == {21}
    parents = sql(database, "select distinct value from tags where key = 'mlflow.parentRunId'")
    assert len(parents) == 1
    assert dict(sql(database, CHILDREN)) == dict(zip(table.cell_hash, table.run_id, strict=True))
    assert sql(database, "select distinct status from runs") == [("FINISHED",)]


@pytest.mark.ray
def test_nothing_but_results_is_left_behind(grid: Any) -> None:
    _, out, _ = grid
    assert {path.name for path in out.iterdir()} == {
        "cells", "mlartifacts", "partitions", "mlflow.db", "mlflow.db.lock", "grid.md", ".grid.lock",
    }  # fmt: skip
    assert len(list((out / "partitions").iterdir())) == 2
    assert "fedavg" in (out / "grid.md").read_text()


@pytest.mark.ray
def test_a_trial_equals_the_same_run(grid: Any, tmp_path: Path) -> None:
    table, _, _ = grid
    for config in sweep("grid", GRID, **{"tracking.enabled": False}).cells()[3:5]:
        alone = runs.execute(config, tmp_path)
        row = table[table.cell_hash == config.cell_hash].iloc[0]
        assert alone.weights_sha256 == row.weights_sha256
        assert alone.metrics["final/last10_accuracy"] == row["final/last10_accuracy"]


@pytest.mark.ray
def test_issued_again_it_runs_nothing_and_then_only_what_is_new(
    grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out, _ = grid
    before = times(out)
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_run", None)
        notes = Notes()
        again = sweeps.run_sweep(sweep("grid", GRID), out, show=notes)
    assert again.equals(table)
    assert notes.lines == ["grid: 8 cells: 8 finished, 0 to run"]
    assert times(out) == before

    lost = table.cell_hash[5]
    (out / "cells" / lost / "result.json").unlink()
    wider = {**GRID, "data.partition": [*LAWS, {"kind": "dirichlet", "alpha": 5.0}], "seed": [0, 1]}
    notes = Notes()
    more = sweeps.run_sweep(sweep("grid", wider, 1), out, show=notes)
    assert notes.lines[0] == "grid: 12 cells: 7 finished, 5 to run, 1 at once"
    assert set(more.status) == {"FINISHED"}
    after = times(out)
    assert {key for key in before if after[key] != before[key]} == {lost}
    kept = more.set_index("cell_hash").loc[list(table.cell_hash)]
    assert kept.run_id.tolist() == table.run_id.tolist()
    assert kept.weights_sha256.tolist() == table.weights_sha256.tolist()
    database = out / "mlflow.db"
    assert len(sql(database, CHILDREN)) == 12
    points = "select count(*) from metrics where key = 'global/test_loss' group by run_uuid"
    assert sql(database, points) == [(21,)] * 12
    assert len(sql(database, "select run_uuid from tags where key = 'sweep_key'")) == 1


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where own_methods is; a file named like one of its methods there makes that method misbehave."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "own_methods.py").write_text(textwrap.dedent(METHODS))
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("own_methods", None)


@pytest.mark.ray
def test_broken_diverged_and_killed_cells_stop_no_other(
    ray_cluster: None, tmp_path: Path, home: Path
) -> None:
    for flag in ("broken", "mortal"):
        (home / flag).write_text("")
    names = ["fedavg", "own_methods:Broken", "own_methods:Mortal"]
    plan = sweep("mixed", {"algorithm.name": names, "algorithm.lr": [0.05, 1e30]}, 2, rounds=8)
    out = tmp_path / "out"
    notes = Notes()
    table = sweeps.run_sweep(plan, out, show=notes)
    status = {(row["algorithm.name"], row["algorithm.lr"]): row.status for _, row in table.iterrows()}
    assert status == {
        ("fedavg", 0.05): "FINISHED",
        ("fedavg", 1e30): "DIVERGED",
        ("own_methods:Broken", 0.05): "FAILED",
        ("own_methods:Broken", 1e30): "DIVERGED",
        ("own_methods:Mortal", 0.05): "FINISHED",
        ("own_methods:Mortal", 1e30): "DIVERGED",
    }
    why = "its process died (killed, crashed, or out of memory), going on from the last checkpoint"
    assert any(line.endswith(why) for line in notes.lines)
    assert any("boom in round 3" in line for line in notes.lines)
    rows = table.set_index(["algorithm.name", "algorithm.lr"])
    sha = rows.weights_sha256
    assert sha["own_methods:Mortal", 0.05] == sha["fedavg", 0.05]
    assert "boom in round 3" in rows.error["own_methods:Broken", 0.05]

    (home / "broken").unlink()
    before = times(out)
    notes = Notes()
    left = sweeps.run_sweep(plan, out, show=notes)
    assert left.equals(table)
    assert "failed before and left alone" in notes.lines[-1]
    retried = sweeps.run_sweep(plan, out, retry_failed=True, show=Notes())
    again = retried.set_index(["algorithm.name", "algorithm.lr"])
    assert again.status["own_methods:Broken", 0.05] == "FINISHED"
    assert again.weights_sha256["own_methods:Broken", 0.05] == sha["fedavg", 0.05]
    changed = {key for key, at in times(out).items() if at != before[key]}
    assert changed == {rows.cell_hash["own_methods:Broken", 0.05]}
    points = sql(
        out / "mlflow.db",
        "select r.status, count(*) from metrics m join runs r on m.run_uuid = r.run_uuid "
        "where key = 'comm/total_bytes' group by r.run_uuid having r.status = 'FINISHED'",
    )
    assert points == [("FINISHED", 9)] * 3


DEATHS = {
    "its process died (killed, crashed, or out of memory)": (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 30068\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
        "detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes"
    ),
    "its process died (Owner's node has crashed.)": (
        "The actor is dead because its worker process has died. Worker exit type: X Worker exit detail: "
        "Owner's node has crashed."
    ),
    "its process died (ended by Ray, for want of memory on its machine)": (
        "Task was killed due to the node running low on memory.\nMemory on the node was 7.5GB / 8GB"
    ),
    "its node died": "The actor died because its node has died. Node Id: 77",
    "it broke (OSError: [Errno 28] No space left on device)": (
        "\x1b[36mray::Trial.save()\x1b[39m (pid=7)\n    raise OSError(28)\n"
        "OSError: [Errno 28] No space left on device"
    ),
}
"""What Ray says, by what rayfl makes of it."""


@pytest.mark.slow
@pytest.mark.parametrize("said", DEATHS)
def test_why_a_trial_broke(said: str) -> None:
    """The last failure counts."""
    from ray.tune import TuneError

    from rayfl.tuning.deaths import reason

    class Broken:
        text = f"Failure # 1 (at noon)\nconnection error code 2\nFailure # 2 (at one)\n{DEATHS[said]}\n"

        def get_error(self) -> TuneError:
            return TuneError(self.text)

    assert reason(Broken()) == said


@pytest.mark.ray
def test_interrupted_and_issued_again_equals_never_stopped(
    ray_cluster: None, tmp_path: Path, home: Path
) -> None:
    class Interrupt(Notes):
        def row(self, label: str, rounds: int, row: Mapping[str, float]) -> None:
            if row["round"] >= 5 and not self.lines.count("stop"):
                self.lines.append("stop")
                os.kill(os.getpid(), signal.SIGINT)

    (home / "slow").write_text("")
    plan = sweep("cut", {"seed": [0, 1]}, rounds=30, **{"algorithm.name": "own_methods:Slow"})
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    notes = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        sweeps.run_sweep(plan, tmp_path / "cut", show=notes)
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state  # type: ignore[index] # noqa: NPY002
    assert "run the same sweep again" in notes.lines[-1]
    cells = [runs.load(path) for path in sorted((tmp_path / "cut" / "cells").iterdir())]
    assert "KILLED" in {cell.result.status for cell in cells if cell is not None}
    (home / "slow").unlink()
    killed = dict(sql(tmp_path / "cut" / "mlflow.db", CHILDREN))
    table = sweeps.run_sweep(plan, tmp_path / "cut", show=Notes())
    for config, row in zip(plan.cells(), table.itertuples(), strict=True):
        assert killed.get(row.cell_hash, row.run_id) == row.run_id
        alone = dataclasses.replace(config, tracking=TrackingConfig(enabled=False))
        assert runs.execute(alone, tmp_path / "alone").weights_sha256 == row.weights_sha256
    points = "select count(*) from metrics where key = 'comm/total_bytes' group by run_uuid"
    assert sql(tmp_path / "cut" / "mlflow.db", points) == [(31,)] * 2


@pytest.mark.ray
@pytest.mark.slow
def test_two_sweeps_at_once_into_one_store(ray_cluster: None, tmp_path: Path, home: Path) -> None:
    """Begun together on a store that isn't there yet; no cell goes on before one of the other sweep runs."""
    import ray

    out, plans, drivers = tmp_path / "out", [], []
    here = {"PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    here["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    for name, lr in (("one", 0.05), ("other", 0.1)):
        settings = {**BASE, "algorithm.name": "own_methods:Meeting", "algorithm.lr": lr}
        plain = {"name": name, "set": settings, "grid": {"seed": [0, 1]}, "max_concurrent": 1}
        plans.append(load_sweep(plain))
        file = home / f"{name}.yaml"
        file.write_text(json.dumps(plain))
        command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(file), str(out)]
        drivers.append(subprocess.Popen(command, env={**os.environ, **here}, stderr=subprocess.PIPE))
    try:
        said = [driver.communicate(timeout=300)[1].decode() for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    assert [driver.returncode for driver in drivers] == [0, 0], said
    for plan in plans:
        for config in plan.cells():
            stored = runs.load(runs.cell_folder(out, config.cell_hash))
            assert stored is not None
            assert stored.result.status == "FINISHED"
            assert [row["round"] for row in stored.result.history] == list(range(21))
        alone = dataclasses.replace(config, tracking=TrackingConfig(enabled=False))
        assert runs.execute(alone, tmp_path / "alone").weights_sha256 == stored.result.weights_sha256
    database = out / "mlflow.db"
    assert len(sql(database, CHILDREN)) == 4
    points = "select count(*) from metrics where key = 'comm/total_bytes' group by run_uuid"
    assert sql(database, points) == [(21,)] * 4
    parents = "select value, count(*) from tags where key = 'mlflow.parentRunId' group by value"
    assert [count for _, count in sql(database, parents)] == [2, 2]
    assert sql(database, "select distinct status from runs") == [("FINISHED",)]


@pytest.mark.ray
def test_ray_fleets_get_a_bundle_per_actor(ray_cluster: None, tmp_path: Path) -> None:
    fleet = {"fleet.kind": "ray", "fleet.client_actors": 2, "tracking.enabled": False}
    plan = sweep("actors", {"algorithm.name": ["splitfed_v1"]}, rounds=2, **fleet)
    notes = Notes()
    table = sweeps.run_sweep(plan, tmp_path, show=notes)
    assert notes.lines[0].endswith("1 to run, 1 at once")
    assert table.status.tolist() == ["FINISHED"], [*table.error, *notes.lines]
    local = sweep("here", {"algorithm.name": ["splitfed_v1"]}, rounds=2, **{"tracking.enabled": False})
    assert runs.execute(local.cells()[0], tmp_path).weights_sha256 == table.weights_sha256[0]


@pytest.mark.ray
def test_what_can_never_start_is_refused_with_both_numbers(ray_cluster: None, tmp_path: Path) -> None:
    plan = sweep("big", {"seed": [0]}, **{"train.threads": 64, "tracking.enabled": False})
    with pytest.raises(UserError, match="asks for 64 CPU, the cluster has 2 ") as caught:
        sweeps.run_sweep(plan, tmp_path, show=Notes())
    assert "\n" not in str(caught.value)
