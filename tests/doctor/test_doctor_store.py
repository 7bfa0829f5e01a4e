"""The MLflow store: none yet, in use, read-only, damaged, of an older MLflow, on a network disk, a server."""

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from asking import ask, levels

from rayfl import places, tracking
from rayfl.errors import UserError


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real store, which takes MLflow seconds to make."""
    folder = tmp_path_factory.mktemp("made")
    tracking.prepare(f"sqlite:///{folder}/mlflow.db", "rayfl", folder / "mlartifacts")
    return folder / "mlflow.db"


def rows(file: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return list(connection.iterdump())


def test_none_yet(tmp_path: Path) -> None:
    (found,) = ask("store", tmp_path / "out")
    assert (found.level, found.text) == ("ok", f"the first run makes {tmp_path}/out/mlflow.db")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "can_write", lambda path: False)
    (found,) = ask("store", tmp_path)
    assert found.level == "problem"
    assert "--out" in found.remedy


@pytest.mark.slow
def test_a_store_opens_and_is_left_as_it_was(made: Path) -> None:
    before = rows(made)
    (found,) = ask("store", made.parent)
    assert (found.level, found.text) == ("ok", f"sqlite:///{made} opens and can be written")
    assert rows(made) == before


@pytest.mark.slow
def test_a_store_of_another_mlflow(made: Path, tmp_path: Path) -> None:
    """MLflow's own message says what it found; rayfl never migrates what it has not made."""
    shutil.copy(made, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0a8213491aaa'")
    with pytest.raises(UserError, match="out-of-date database schema"):
        ask("store", tmp_path)


@pytest.mark.slow
def test_a_store_that_another_process_writes_to(made: Path, tmp_path: Path) -> None:
    shutil.copy(made, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked"):
            ask("store", tmp_path)


@pytest.mark.slow
def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(UserError, match="not a database"):
        ask("store", tmp_path)


def test_a_network_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "network_file_system", lambda path: "nfs4")
    found = ask("store", tmp_path)
    assert levels(found) == ["warning", "ok"]
    assert "nfs4" in found[0].text


def test_a_store_of_the_environment_is_opened_as_a_run_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its address, which may hold a password, is not shown."""
    opened: list[Any] = []
    monkeypatch.setattr(tracking, "prepare", lambda *arguments: opened.append(arguments))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example")
    (found,) = ask("store", tmp_path)
    assert found.level == "ok"
    assert "secret" not in found.text
    assert [uri for uri, *_ in opened] == ["https://me:secret@mlflow.example"]


def test_a_folder_as_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(UserError, match="no longer keeps runs in a folder"):
        ask("store", tmp_path)
