"""Which store, what is shown of its address, and what it leaves behind in the process."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_run import config, sql

from rayfl import runs, tracking
from rayfl.config import TrackingConfig
from rayfl.errors import UserError
from rayfl.tracking import address, outbox
from rayfl.tracking.client import library


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


@pytest.mark.parametrize(
    ("uri", "seen", "secrets"),
    [
        ("postgresql://me:a%2Fb@db:5/r?sslmode=require", "postgresql://me:***@db:5/r", ["a%2Fb", "a/b"]),
        ("https://me:se@cret@host/mlflow", "https://me:***@host/mlflow", ["se@cret"]),
        ("mysql+pymysql://me@db/r?password=x%20y", "mysql+pymysql://me@db/r", ["x%20y", "x y"]),
        ("sqlite:////tmp/runs.db", "sqlite:////tmp/runs.db", []),
    ],
)  # fmt: skip
def test_no_password_is_shown(uri: str, seen: str, secrets: list[str]) -> None:
    assert address.shown(uri) == seen
    message = address.without_secrets(f"request to {uri} failed for {secrets}", uri)
    assert seen in message
    assert not any(secret in message for secret in secrets)


@pytest.mark.parametrize(
    "uri", ["postgresql://me:secret@db/runs", "mssql://db/runs?odbc_connect=PWD%3Dsecret"]
)
def test_a_config_that_holds_a_password_is_refused_before_it_is_written_down(bare: Path, uri: str) -> None:
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI") as caught:
        runs.execute(config(uri=uri), bare)
    assert "secret" not in str(caught.value)
    written = [path.read_bytes() for path in bare.rglob("*") if path.is_file()]
    assert not any(b"secret" in content for content in written)


def test_a_dead_server_is_said_at_once(bare: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(UserError, match="no MLflow server answers") as caught:
        runs.execute(config(uri=uri), bare)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("driver", ["postgresql", "mysql"])
def test_a_dead_database_is_said_at_once(bare: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "MLFLOW_TRACKING_URI", f"{driver}://me:secret@127.0.0.1:{unused.getsockname()[1]}/runs"
        )
    with pytest.raises(UserError, match="Connection refused") as caught:
        runs.execute(config(), bare)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_the_callers_process_is_as_before(out: Path) -> None:
    with library():
        pass
    environment, level = dict(os.environ), logging.getLogger("mlflow").level
    with library() as mlflow:
        assert mlflow.environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 0
        assert dict(os.environ) == environment
    runs.execute(config(1), out)
    assert dict(os.environ) == environment
    assert mlflow.environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 7
    assert logging.getLogger("mlflow").level == level


@pytest.mark.slow
def test_threads_take_turns_at_the_settings() -> None:
    """Else the one that leaves last would put back what the other had set."""
    entered = []

    def enter() -> None:
        with library():
            entered.append(True)

    with library() as mlflow:
        other = threading.Thread(target=enter)
        other.start()
        other.join(0.2)
        assert not entered
    other.join()
    assert entered
    assert mlflow.environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 7


def test_a_store_that_is_away_is_asked_again_only_when_its_share_of_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt of 9 s that fails is followed by 9 / 0.03 = 300 s without one, unless the run ends."""
    clock, attempts = [1000.0], []

    def fail() -> None:
        attempts.append(clock[0])
        clock[0] += 9
        raise OSError("timed out")

    monkeypatch.setattr(outbox.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(outbox, "reach", lambda uri: None)
    box = outbox.Outbox("http://127.0.0.1:1")
    for _ in range(700):
        assert not box.send(fail)
        clock[0] += 1
    assert attempts == [1000, 1309, 1618]
    box.send(fail, insist=True)
    assert len(attempts) == 4


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
