"""MLflow: one writer, one store, each round once."""

import dataclasses
import math
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rayfl import runs, tracking
from rayfl.algorithms.fedavg import FedAvg
from rayfl.config import ExperimentConfig, TrackingConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.errors import UserError
from rayfl.experiment import Experiment, Observer
from rayfl.models import ModelConfig

SMALL = SyntheticConfig(num_train=120, num_test=40, num_classes=3, height=4, width=4)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store: making one takes MLflow seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    tracking.prepare(f"sqlite:///{folder}/mlflow.db", "none")
    return folder / "mlflow.db"


@pytest.fixture
def out(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output folder with a store, without a picture to draw."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    (tmp_path / "picture.png").write_bytes(b"png")
    monkeypatch.setattr(runs, "picture", lambda experiment, out: tmp_path / "picture.png")
    return tmp_path


def config(rounds: int = 6, root: str | None = None, **tracked: Any) -> ExperimentConfig:
    """Three clients, checkpoints every two rounds."""
    return ExperimentConfig(
        rounds=rounds,
        checkpoint_every=2,
        algorithm=FedAvg.Config(lr=0.05, batch_size=8),
        data=DataConfig(
            name="synthetic",
            num_clients=3,
            partition=PartitionConfig(kind="dirichlet", min_size=1),
            synthetic=SMALL,
            root=root,
        ),
        model=ModelConfig(name="mlp", width=0.1),
        tracking=TrackingConfig(**tracked),
    )


def sql(database: Path, query: str) -> list[Any]:
    """Ask the store behind MLflow's back."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


class StopAt(Observer):
    """Ctrl-C after some round."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        if row["round"] == self.stop:
            raise KeyboardInterrupt


def test_a_run_is_in_the_store_whole(out: Path) -> None:
    result = runs.execute(config(20), out)
    database = out / "mlflow.db"
    points = dict(
        sql(database, "select key, count(*) from metrics where key not like 'final/%' group by key")
    )
    assert points["global/test_accuracy"] == points["comm/total_bytes"] == points["wall/round_s"] == 21
    assert "round" not in points
    steps = sql(database, "select step from metrics where key = 'global/test_loss' order by step")
    assert [step for (step,) in steps] == list(range(21))
    logged = dict(sql(database, "select key, value from latest_metrics"))
    for key in ("global/test_accuracy", "final/last10_accuracy", "final/best_accuracy"):
        assert logged[key] == result.metrics[key]
    assert sql(database, "select run_uuid, status from runs") == [(result.run_id, "FINISHED")]
    tags = dict(sql(database, "select key, value from tags"))
    expected = {
        "method": "fedavg", "dataset": "synthetic", "partition": "dirichlet.niid_bench", "alpha": "0.5",
        "seed": "0", "cell_hash": result.cell_hash, "partition_hash": result.partition_hash,
        "status": "FINISHED", "weights_sha256": result.weights_sha256, "rayfl_version": tracking.version(),
    }  # fmt: skip
    assert {key: tags[key] for key in expected} == expected
    params = dict(sql(database, "select key, value from params"))
    assert params["algorithm.lr"] == "0.05"
    assert params["data.partition.alpha"] == "0.5"
    artifacts = {path.name for path in (out / "mlartifacts").rglob("*.*") if path.is_file()}
    assert artifacts == {"config.json", "ledger.parquet", "confusion.csv", "clients.csv", "picture.png"}


def test_resuming_goes_on_in_the_same_run_and_repeats_no_point(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.execute(config(), out, observers=[StopAt(5)])
    database = out / "mlflow.db"
    assert sql(database, "select status from runs") == [("KILLED",)]
    result = runs.execute(config(), out, resume=True)
    assert sql(database, "select run_uuid, status from runs") == [(result.run_id, "FINISHED")]
    steps = sql(database, "select step from metrics where key = 'global/test_accuracy' order by step")
    assert [step for (step,) in steps] == list(range(7))
    anew = runs.execute(config(), out)
    assert anew.run_id != result.run_id


def test_rounds_lost_by_the_writer_are_made_up_for_on_resuming(out: Path) -> None:
    class Unwritten(StopAt):
        def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
            if row["round"] == 2:
                experiment.patch.setattr(tracking.RunLog, "flush", lambda log: None)  # type: ignore[attr-defined]
            if row["round"] == 5:
                experiment.patch.setattr(tracking.RunLog, "end", lambda *rest: None)  # type: ignore[attr-defined]
            super().on_round(experiment, row)

        def on_start(self, experiment: Experiment) -> None:
            experiment.patch = patch  # type: ignore[attr-defined]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        runs.execute(config(), out, observers=[Unwritten(5)])
    steps = "select count(*) from metrics where key = 'comm/total_bytes'"
    assert sql(out / "mlflow.db", steps)[0][0] < 5
    runs.execute(config(), out, resume=True)
    assert sql(out / "mlflow.db", steps) == [(7,)]


def test_what_is_not_a_number_is_said_in_words(out: Path) -> None:
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    log = tracking.RunLog(store, config())
    log.rows([{"round": 0, "comm/total_bytes": 0.0, "acc@1 (%)": 3.0}])
    log.rows([{"round": 1, "comm/total_bytes": 0.0, "global/test_loss": math.inf, "x": math.nan}])
    log.flush()
    metrics = dict(sql(out / "mlflow.db", "select key, value from metrics"))
    assert metrics == {"comm/total_bytes": 0.0, "acc_1 ___": 3.0}
    tags = dict(sql(out / "mlflow.db", "select key, value from tags"))
    assert tags["nonfinite.global/test_loss"] == "inf in round 1"
    assert tags["nonfinite.x"] == "nan in round 1"


def test_a_long_value_is_cut_where_it_must_and_whole_in_the_artifact(out: Path) -> None:
    long = config(root="r" * 10_000)
    params = tracking.run_params(long)
    assert len(params["data.root"]) == tracking.LONGEST_PARAM
    assert params["data.root"].endswith("…")
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    tracking.RunLog(store, long).flush()
    kept = sql(out / "mlflow.db", "select value from params where key = 'data.root'")
    assert kept == [(params["data.root"],)]


def test_trouble_with_the_store_is_said_once_and_stops_nothing(
    out: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    log = tracking.RunLog(store, config())
    with monkeypatch.context() as patch:
        patch.setattr(store.client, "log_batch", lambda *a, **k: 1 / 0)
        for t in range(4):
            log._next = 0.0
            log.rows([{"round": t, "comm/total_bytes": float(t)}])
    assert caplog.text.count("takes no more metrics") == 1
    log._next = 0.0
    log.rows([{"round": 4, "comm/total_bytes": 4.0}])
    steps = sql(out / "mlflow.db", "select step from metrics order by step")
    assert [step for (step,) in steps] == [0, 1, 2, 3, 4]


def test_the_uri_is_absolute_and_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def uri(text: str | None) -> str:
        return tracking.store_uri(TrackingConfig(uri=text), Path("results"))

    assert uri(None) == f"sqlite:///{tmp_path}/results/mlflow.db"
    assert uri("sqlite:///rel.db") == f"sqlite:///{tmp_path}/rel.db"
    assert uri("sqlite:////abs/x.db") == "sqlite:////abs/x.db"
    assert uri("http://127.0.0.1:5000") == "http://127.0.0.1:5000"
    for folder in ("file:./mlruns", "./mlruns", "mlruns", "file:///tmp/mlruns"):
        with pytest.raises(UserError, match="use a database"):
            uri(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///env.db")
    assert uri(None) == f"sqlite:///{tmp_path}/env.db"
    assert uri("sqlite:///rel.db") == f"sqlite:///{tmp_path}/rel.db"


def test_a_relative_store_lies_in_the_shells_folder(
    out: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out)
    shutil.copy(empty_database, out / "rel.db")
    result = runs.execute(config(1, uri="sqlite:///rel.db"), out / "elsewhere")
    assert sql(out / "rel.db", "select run_uuid from runs") == [(result.run_id,)]
    assert {path.parent for path in out.rglob("rel.db")} == {out}
    assert sql(out / "mlflow.db", "select run_uuid from runs") == []


def test_a_dead_server_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(UserError, match="no MLflow server answers") as caught:
        runs.execute(config(uri=uri), tmp_path)
    assert time.monotonic() - began < 10
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_two_processes_make_one_new_store(tmp_path: Path) -> None:
    script = (
        "import sys; from rayfl import tracking;print(tracking.prepare(sys.argv[1], 'rayfl').experiment_id)"
    )
    command = [sys.executable, "-c", script, f"sqlite:///{tmp_path}/new.db"]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert sql(tmp_path / "new.db", "select count(*) from experiments where name = 'rayfl'") == [(1,)]


def test_a_sweeps_parent_is_found_again(out: Path) -> None:
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    parent = store.parent("grid", "key", {"grid": "a"})
    children = [
        tracking.RunLog(store, dataclasses.replace(config(), seed=seed), parent=parent).run_id
        for seed in (0, 1)
    ]
    again = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl")
    assert again.parent("grid", "key", {"grid": "b"}) == parent
    assert set(again.children(parent).values()) == set(children)
    assert again.children(parent)[config().cell_hash] == children[0]
    assert again.parent("grid", "other", {}) != parent


def test_names_that_mlflow_takes() -> None:
    assert tracking.metric_name("comm/client-fed_up_weights_bytes") == "comm/client-fed_up_weights_bytes"
    assert tracking.metric_name("/../acc@1(%)/x") == "acc_1___/x"
    assert tracking.metric_name("@") == "_"
