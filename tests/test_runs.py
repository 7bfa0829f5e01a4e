"""Runs on disk: resumed = never stopped, nothing lost, one line for what can't be done."""

import errno
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rayfl
from rayfl import checkpoint, runs, tree
from rayfl.algorithms.fedavg import FedAvg
from rayfl.config import ExperimentConfig, TrackingConfig, TrainConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.errors import RunFailed, UserError
from rayfl.experiment import Experiment, Observer
from rayfl.fleet import LocalFleet
from rayfl.fleet_config import FleetConfig
from rayfl.models import ModelConfig

SMALL = SyntheticConfig(num_train=120, num_test=40, num_classes=3, height=4, width=4)


def config(rounds: int = 6, lr: float = 0.05, **more: Any) -> ExperimentConfig:
    """Three clients, checkpoints every two rounds, no MLflow."""
    return ExperimentConfig(
        rounds=rounds,
        checkpoint_every=2,
        algorithm=FedAvg.Config(lr=lr, momentum=0.9, participation=0.7, batch_size=8),
        data=DataConfig(
            name="synthetic", num_clients=3, partition=PartitionConfig(min_size=1), synthetic=SMALL
        ),
        model=ModelConfig(name="mlp", width=0.1),
        tracking=TrackingConfig(enabled=False),
        **more,
    )


class StopAt(Observer):
    """Raises after some round; notes the rounds it saw."""

    def __init__(self, stop: int = 10**9, failure: BaseException | None = None) -> None:
        self.stop, self.failure = stop, failure or KeyboardInterrupt()
        self.seen: list[int] = []
        self.status = ""

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        self.seen.append(int(row["round"]))
        if row["round"] == self.stop:
            raise self.failure

    def on_end(self, experiment: Experiment, result: Any) -> None:
        self.status = result.status


def numbers(result: Any) -> list[dict[str, float]]:
    """The history without what a clock measured."""
    return [
        {key: value for key, value in row.items() if not key.startswith("wall/")} for row in result.history
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that nobody stopped, and where."""
    out = tmp_path_factory.mktemp("whole")
    return runs.execute(config(), out), out


def cell(out: Path) -> Path:
    """The folder of the only config used here."""
    return runs.cell_folder(out, config().cell_hash)


def interrupted(out: Path, after: int = 5) -> None:
    """A run that Ctrl-C stopped."""
    with pytest.raises(KeyboardInterrupt):
        runs.execute(config(), out, observers=[StopAt(after)])


def test_interrupted_and_resumed_equals_never_stopped(whole: Any, tmp_path: Path) -> None:
    watcher = StopAt(5)
    with pytest.raises(KeyboardInterrupt):
        runs.execute(config(), tmp_path, observers=[watcher])
    stored = runs.load(cell(tmp_path))
    assert stored is not None
    assert (stored.result.status, watcher.status) == ("KILLED", "KILLED")
    after = StopAt()
    result = runs.execute(config(), tmp_path, resume=True, observers=[after])
    assert after.seen == [5, 6]  # the checkpoint is of round 4
    assert result.weights_sha256 == whole[0].weights_sha256
    assert numbers(result) == numbers(whole[0])


@pytest.mark.slow
def test_sigkill_loses_only_rounds_since_the_last_checkpoint(whole: Any, tmp_path: Path) -> None:
    script = (
        "import os, sys, signal, torch\n"
        "torch.set_num_threads(1)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_runs\n"
        "class Die(test_runs.Observer):\n"
        "    def on_round(self, experiment, row):\n"
        "        if row['round'] == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "test_runs.runs.execute(test_runs.config(), sys.argv[2], observers=[Die()])\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert runs.load(cell(tmp_path)) is None
    watcher = StopAt()
    result = runs.execute(config(), tmp_path, resume=True, observers=[watcher])
    assert watcher.seen == [5, 6]
    assert result.weights_sha256 == whole[0].weights_sha256


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(tmp_path)
    newest = cell(tmp_path) / "checkpoint-000004.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    watcher = StopAt()
    result = runs.execute(config(), tmp_path, resume=True, observers=[watcher])
    assert watcher.seen[0] == 3
    assert f"checkpoint {newest} is damaged" in caplog.text
    assert result.weights_sha256 == whole[0].weights_sha256


def test_an_ended_run_is_not_run_again(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, out = whole
    before = (cell(out) / "result.json").stat().st_mtime_ns
    monkeypatch.setattr(runs, "Experiment", None)
    again = runs.execute(config(), out, resume=True)
    assert again == result
    assert numbers(again) == numbers(result)
    assert (cell(out) / "result.json").stat().st_mtime_ns == before


def test_without_resume_it_starts_anew(tmp_path: Path) -> None:
    interrupted(tmp_path)
    watcher = StopAt()
    runs.execute(config(), tmp_path, observers=[watcher])
    assert watcher.seen == list(range(7))


def test_what_is_kept(whole: Any) -> None:
    result, out = whole
    folder = cell(out)
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == [
        "clients.csv", "config.json", "confusion.csv", "ledger.parquet", "result.json", "weights.pt",
    ]  # fmt: skip
    assert json.loads((folder / "config.json").read_text()) == config().to_dict()
    weights = torch.load(folder / "weights.pt", weights_only=True)
    assert tree.sha256(weights) == result.weights_sha256
    ledger = pq.read_table(folder / "ledger.parquet").to_pandas()
    headline = ledger[ledger.phase.isin(["train", "aggregation"])]
    assert headline.bytes.sum() == result.metrics["comm/total_bytes"] > 0
    confusion = np.loadtxt(folder / "confusion.csv", delimiter=",")
    assert confusion.sum() == 40
    assert np.trace(confusion) / 40 == pytest.approx(result.metrics["global/test_accuracy"])


def test_diverging_is_a_result(tmp_path: Path) -> None:
    wild = config(lr=1e30)
    result = runs.execute(wild, tmp_path)
    assert result.status == "DIVERGED"
    assert result.rounds < wild.rounds
    folder = runs.cell_folder(tmp_path, wild.cell_hash)

    def refuse(text: str) -> None:
        raise AssertionError(f"not JSON: {text}")

    json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    stored = runs.load(folder)
    assert stored is not None
    assert not np.isfinite(stored.result.metrics["global/test_loss"])
    assert runs.execute(wild, tmp_path, resume=True).status == "DIVERGED"


def test_a_failure_is_recorded_and_raised(tmp_path: Path) -> None:
    watcher = StopAt(3, ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        runs.execute(config(), tmp_path, observers=[watcher])
    stored = runs.load(cell(tmp_path))
    assert stored is not None
    assert stored.result.status == watcher.status == "FAILED"
    assert stored.result.rounds == 3
    assert stored.error is not None
    assert stored.error.startswith("Traceback")
    assert stored.error.endswith("ValueError: boom")


def test_a_full_disk_ends_in_one_line_and_keeps_the_checkpoint(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save

    def full(folder: Path, t: int, state: dict[str, Any]) -> Path:
        if t == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(folder, t, state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        with pytest.raises(RunFailed, match="no space left") as caught:
            runs.execute(config(), tmp_path)
    assert "\n" not in str(caught.value)
    watcher = StopAt()
    result = runs.execute(config(), tmp_path, resume=True, observers=[watcher])
    assert watcher.seen[0] == 3
    assert result.weights_sha256 == whole[0].weights_sha256


def test_an_unwritable_folder_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(runs, "Experiment", None)
    with pytest.raises(UserError, match="can't write to the output folder") as caught:
        runs.execute(config(), tmp_path / "file" / "out")
    assert "\n" not in str(caught.value)


def test_two_processes_never_share_a_cell(tmp_path: Path) -> None:
    with runs.claim(cell(tmp_path)), pytest.raises(UserError, match="another process is at work"):
        runs.execute(config(), tmp_path)


def test_a_damaged_result_counts_as_not_run(
    whole: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs.execute(config(), tmp_path)
    path = cell(tmp_path) / "result.json"
    path.write_text(path.read_text()[:200])
    assert runs.execute(config(), tmp_path, resume=True).weights_sha256 == whole[0].weights_sha256
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(("cpus", "threads", "idle"), [(4, 1, True), (2, 2, False), (1, 1, False)])
def test_cpus_that_stay_idle_are_pointed_out(
    cpus: float, threads: int, idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = FleetConfig(kind="ray", cpus_per_actor=cpus)
    asked = config(fleet=fleet, train=TrainConfig(threads=threads))
    Experiment(asked, lambda config, blueprint: LocalFleet(blueprint)).close()
    assert ("set train.threads=4" in caplog.text) == idle


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    runs.execute(config(rounds=1), tmp_path)
    assert draw() == expected


def test_the_api_takes_plain_keys_and_runs_twice(tmp_path: Path) -> None:
    plain = config().to_dict()
    first = rayfl.run(plain, out=tmp_path, overrides=["rounds=1"])
    second = rayfl.run(plain, out=tmp_path, overrides=["rounds=1"])
    assert isinstance(first, rayfl.Result)
    assert first.weights_sha256 == second.weights_sha256
    assert first.rounds == 1
    assert rayfl.__version__
