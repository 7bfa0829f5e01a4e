"""Stores that are locked, read-only, full or gone: training goes on, and what is missing arrives later."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from servers import Server
from small_run import At, config, sql, whole

from rayfl import runs
from rayfl.errors import UserError
from rayfl.experiment import Result
from rayfl.tracking import address
from rayfl.tracking.client import library

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]
Log = pytest.LogCaptureFixture


class Lock:
    """Another process that holds an SQLite store."""

    SCRIPT = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> None:
        command = [sys.executable, "-c", self.SCRIPT, str(self._path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "locked\n"

    def release(self) -> None:
        self._process.communicate()


def steps(out: Path) -> list[int]:
    found = sql(out / "mlflow.db", "select step from metrics where key = 'comm/total_bytes' order by step")
    return [step for (step,) in found]


def complete(folder: Path, result: Result) -> bool:
    with library() as mlflow:
        return whole(mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db"), result)


@pytest.mark.slow
def test_a_locked_store_is_waited_for_and_then_passed_by(
    out: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked by another process from round 2 on: rounds go on without it, and arrive when it lets go."""
    monkeypatch.setattr(address, "CONNECT_S", 0.2)
    lock, seen = Lock(out / "mlflow.db"), []
    deeds = At(
        round_2=lock.take,
        round_4=lock.release,
        round_5=lambda: seen.append(steps(out)),
    )
    result = runs.execute(config(), out, observers=[deeds])
    # Said by rayfl's own look at the lock, which is shorter than MLflow's.
    assert "(database is locked)" in caplog.text
    assert seen == [[0, 1, 2, 3, 4, 5]]
    assert complete(out, result)


def test_a_store_that_is_locked_at_the_start_is_said(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "CONNECT_S", 0.2)
    # In rayfl's words, after rayfl's time: MLflow waits longer.
    lock = Lock(out / "mlflow.db")
    lock.take()
    with pytest.raises(UserError, match=r"mlflow\.db': database is locked"):
        runs.execute(config(), out)
    lock.release()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing in a folder can be written: by its mode, or for root, who ignores modes, by a mount."""
    with ExitStack() as stack:
        if os.getuid() != 0:
            folder.chmod(0o555)
            stack.callback(folder.chmod, 0o755)
        else:
            place = str(folder)
            if subprocess.run(["mount", "--bind", place, place], capture_output=True, check=False).returncode:
                pytest.skip("root may not mount here, and ignores file modes")
            stack.callback(subprocess.run, ["umount", "--lazy", place], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield


@pytest.fixture
def apart(empty_database: Path) -> Iterator[Path]:
    """A store in a folder of its own, not among pytest's, which it tidies up whatever is mounted there."""
    with tempfile.TemporaryDirectory(prefix="rayfl-store-") as folder:
        shutil.copy(empty_database, folder)
        yield Path(folder)


def test_a_store_that_becomes_read_only(bare: Path, apart: Path, caplog: Log) -> None:
    stack = ExitStack()
    deeds = At(round_2=lambda: stack.enter_context(read_only(apart)), round_4=stack.close)
    with stack:
        result = runs.execute(config(uri=f"sqlite:///{apart}/mlflow.db"), bare, observers=[deeds])
    assert "takes no more metrics" in caplog.text
    assert complete(apart, result)


def test_a_store_that_is_read_only_at_the_start(bare: Path, apart: Path) -> None:
    with read_only(apart), pytest.raises(UserError, match="can't open the MLflow store"):
        runs.execute(config(uri=f"sqlite:///{apart}/mlflow.db"), bare)


def test_a_full_disk(bare: Path, apart: Path, caplog: Log) -> None:
    """The store's file can't grow from round 2 on, until there is room again after round 4."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((apart / "mlflow.db").stat().st_size, before[1]))

    def free() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        deeds = At(round_2=fill, round_8=free)
        result = runs.execute(config(12, uri=f"sqlite:///{apart}/mlflow.db"), bare, observers=[deeds])
    finally:
        free()
    assert "takes no more metrics" in caplog.text
    assert complete(apart, result)


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(server: Server, bare: Path, caplog: Log) -> None:
    """The run goes on; what it could not write arrives when the server is back, once each."""
    result = runs.execute(config(), bare, observers=[At(round_2=server.kill, round_4=server.start)])
    assert "takes no more metrics" in caplog.text
    with library() as mlflow:
        assert whole(mlflow.MlflowClient(server.uri), result)


@pytest.mark.slow
def test_a_server_that_is_gone_for_good(server: Server, bare: Path, caplog: Log) -> None:
    result = runs.execute(config(), bare, observers=[At(round_2=server.kill)])
    assert result.status == "FINISHED"
    assert f"MLflow run {result.run_id} is incomplete; all numbers are in" in caplog.text
    stored = runs.load(bare / "cells" / result.cell_hash)
    assert stored is not None
    assert [row["round"] for row in stored.result.history] == list(range(7))
    assert stored.result.metrics == result.metrics


KILL = """
import os, signal, sys
from pathlib import Path
import sqlalchemy
from rayfl import runs, tracking
from rayfl.tracking import outbox
sys.path.append(sys.argv[1])
from small_run import config
outbox.PAUSE_S = 0.0
outbox.Outbox.post = outbox.Outbox.send
moment, write = sys.argv[3], tracking.RunLog._write

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def dying(log):
    if log._pending and log._pending[-1][1] == 4:
        if moment == "within":
            sqlalchemy.event.listen(sqlalchemy.engine.Engine, "commit", die)
        write(log)
        die()
    write(log)

tracking.RunLog._write = dying
runs.picture = None
runs.execute(config(), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "written"), [("within", 3), ("after", 4)])
def test_a_driver_killed_while_it_writes(out: Path, moment: str, written: int) -> None:
    """In the middle of a transaction, or when it arrived and nobody heard: resumed, each point is once."""
    command = [sys.executable, "-c", KILL, str(Path(__file__).parent), str(out), moment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert steps(out) == list(range(written + 1))
    result = runs.execute(config(), out, resume=True)
    assert sql(out / "mlflow.db", "select run_uuid from runs") == [(result.run_id,)]
    assert complete(out, result)
    never_stopped = runs.execute(config(enabled=False), out / "whole")
    assert result.weights_sha256 == never_stopped.weights_sha256
