"""One writer, each round once, nothing lost and nothing cut unseen."""

import dataclasses
import math
import threading
from pathlib import Path

import pytest
from small_run import At, config, sql, stop, whole

from rayfl import runs, tracking
from rayfl.tracking import outbox
from rayfl.tracking.client import library

pytestmark = pytest.mark.slow


def new_log(out: Path, parent: str | None = None) -> tracking.RunLog:
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    return tracking.RunLog(store, config(), parent=parent)


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
        runs.execute(config(), out, observers=[At(round_5=stop)])
    database = out / "mlflow.db"
    assert sql(database, "select status from runs") == [("KILLED",)]
    result = runs.execute(config(), out, resume=True)
    assert sql(database, "select run_uuid, status from runs") == [(result.run_id, "FINISHED")]
    steps = sql(database, "select step from metrics where key = 'global/test_accuracy' order by step")
    assert [step for (step,) in steps] == list(range(7))
    anew = runs.execute(config(), out)
    assert anew.run_id != result.run_id


def test_rounds_lost_by_the_writer_are_made_up_for_on_resuming(out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        silent = At(
            round_2=lambda: patch.setattr(tracking.RunLog, "flush", lambda log: None),
            round_5=lambda: patch.setattr(tracking.RunLog, "end", lambda *rest: None),
        )
        with pytest.raises(KeyboardInterrupt):
            runs.execute(config(), out, observers=[silent, At(round_5=stop)])
    steps = "select count(*) from metrics where key = 'comm/total_bytes'"
    assert sql(out / "mlflow.db", steps)[0][0] < 5
    runs.execute(config(), out, resume=True)
    assert sql(out / "mlflow.db", steps) == [(7,)]


def test_what_is_not_a_number_is_said_in_words(out: Path) -> None:
    log = new_log(out)
    log.rows([{"round": 0, "comm/total_bytes": 0.0, "acc@1 (%)": 3.0, "a//b": 4.0, "é": 5.0}])
    log.rows([{"round": 1, "comm/total_bytes": 0.0, "global/test_loss": math.inf, "x" * 300: math.nan}])
    log.flush()
    log._store.outbox.wait()
    metrics = dict(sql(out / "mlflow.db", "select key, value from metrics"))
    assert metrics == {"comm/total_bytes": 0.0, "acc_1 ___": 3.0, "a/b": 4.0, "é": 5.0}
    tags = dict(sql(out / "mlflow.db", "select key, value from tags"))
    assert tags["nonfinite.global/test_loss"] == "inf in round 1"
    assert tags["nonfinite." + "x" * 240] == "nan in round 1"


def test_a_long_value_is_cut_where_it_must_and_whole_in_the_artifact(out: Path) -> None:
    long = config(root="r" * 10_000)
    params = tracking.run_params(long)
    assert len(params["data.root"]) == tracking.LONGEST_PARAM
    assert params["data.root"].endswith("…")
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    tracking.RunLog(store, long).flush()
    store.outbox.wait()
    kept = sql(out / "mlflow.db", "select value from params where key = 'data.root'")
    assert kept == [(params["data.root"],)]


@pytest.mark.parametrize("metrics", [300, 2500])
def test_rounds_of_many_metrics_are_never_torn_in_two(
    out: Path, metrics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request holds whole rounds, a larger one ends on the metric that rounds are known by; and what has
    arrived before a request fails is not sent again."""
    log = new_log(out)
    requests: list[list[tuple[str, int]]] = []

    def log_batch(run_id: str, points: list[object], *rest: object, **how: object) -> None:
        if log._pending and log._pending[0][1] == 2 and not again:
            raise OSError("gone")
        requests.append([(point.key, point.step) for point in points])  # type: ignore[attr-defined]

    again: list[bool] = []
    monkeypatch.setattr(log._store.client, "log_batch", log_batch)
    rows = [
        {"round": t, "comm/total_bytes": 1.0, **{f"client/{i}": float(i) for i in range(metrics)}}
        for t in range(5)
    ]
    log.rows(rows)
    log._store.outbox.wait()
    assert log._store.outbox.away
    assert {step for request in requests for _, step in request} == {0, 1}
    again.append(True)
    log.flush()
    log._store.outbox.wait()
    assert all(len(request) <= 800 for request in requests)
    points = [point for request in requests for point in request]
    assert len(points) == len(set(points)) == 5 * (metrics + 1)
    seen: set[int] = set()
    for request in requests:
        assert not {step for _, step in request} & seen
        seen |= {step for key, step in request if key == "comm/total_bytes"}


def test_a_store_that_is_slow_is_not_waited_for(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that began in round 1 arrives after round 4: rounds go on meanwhile, and none gets lost."""
    with library() as mlflow:
        client = mlflow.MlflowClient
    log_batch, opened, arrived = client.log_batch, threading.Event(), []

    def slow(*request: object, **how: object) -> None:
        arrived.append(opened.wait(30))
        log_batch(*request, **how)

    monkeypatch.setattr(client, "log_batch", slow)
    result = runs.execute(config(), out, observers=[At(round_4=opened.set)])
    assert set(arrived) == {True}
    assert whole(client(f"sqlite:///{out}/mlflow.db"), result)


@pytest.mark.usefixtures("eager")
def test_trouble_with_the_store_is_said_once_and_stops_nothing(
    out: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(out)
    with monkeypatch.context() as patch:
        patch.setattr(log._store.client, "log_batch", lambda *a, **k: 1 / 0)
        for t in range(4):
            log.rows([{"round": t, "comm/total_bytes": float(t)}])
    assert caplog.text.count("takes no more metrics") == 1
    log.rows([{"round": 4, "comm/total_bytes": 4.0}])
    steps = sql(out / "mlflow.db", "select step from metrics order by step")
    assert [step for (step,) in steps] == [0, 1, 2, 3, 4]
    assert caplog.text.count("takes metrics again") == 1


def test_a_last_write_that_is_torn_is_repeated_without_doubles(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers arrived, the files did not: of the second attempt only the files are new."""
    monkeypatch.setattr(outbox, "SHARE", math.inf)
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    log = tracking.RunLog(store, config(), parent=store.parent("grid", "key", {}))
    result = runs.execute(config(2, enabled=False), out)
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "copy", lambda *rest: 1 / 0)
        log.end(result, out)
    assert store.outbox.settle() == 0
    finals = sql(out / "mlflow.db", "select key, count(*) from metrics where key like 'final/%' group by key")
    assert finals
    assert {count for _, count in finals} == {1}
    assert sql(out / "mlflow.db", f"select status from runs where run_uuid = '{log.run_id}'") == [
        ("FINISHED",)
    ]


def test_a_run_that_is_ended_twice_has_each_point_once(out: Path) -> None:
    """Killed after its last write and before its own record of it, a resumed run ends again."""
    result = runs.execute(config(2), out)
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    tracking.RunLog(store, config(2), result.run_id).end(result, out)
    doubles = "select key, step from metrics group by key, step having count(*) > 1"
    assert sql(out / "mlflow.db", doubles) == []


def test_a_cell_that_begins_while_the_store_is_away_arrives_later(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tracking.prepare(f"sqlite:///{out}/mlflow.db", "rayfl", out / "mlartifacts")
    parent = store.parent("grid", "key", {})
    result = runs.execute(config(2, enabled=False), out)
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "reach", lambda uri: 1 / 0)
        log = tracking.RunLog(store, config(2), parent=parent)
        log.rows(result.history[:2])
        log.end(result, out)
        assert store.outbox.settle() == 1
        assert (log.run_id, sql(out / "mlflow.db", "select count(*) from runs")) == ("", [(1,)])
    store.end(parent, "FINISHED")
    assert store.children(parent) == {config(2).cell_hash: log.run_id}
    steps = sql(out / "mlflow.db", "select step from metrics where key = 'comm/total_bytes' order by step")
    assert [step for (step,) in steps] == [0, 1, 2]
    assert set(sql(out / "mlflow.db", "select status from runs")) == {("FINISHED",)}


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
