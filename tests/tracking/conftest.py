"""MLflow stores for the tests of this folder: files, and servers that are started once."""

import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from postgres import postgres
from servers import WRITER, Server, free_port

from rayfl import runs
from rayfl.tracking import outbox


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round is written, or tried to be, at once, and waited for."""
    monkeypatch.setattr(outbox, "SHARE", math.inf)
    monkeypatch.setattr(outbox, "PAUSE_S", 0.0)
    monkeypatch.setattr(outbox.Outbox, "post", outbox.Outbox.send)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output folder, without a picture to draw."""
    (tmp_path / "picture.png").write_bytes(b"png")
    monkeypatch.setattr(runs, "picture", lambda experiment, out: tmp_path / "picture.png")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def out(bare: Path, empty_database: Path) -> Path:
    """An output folder with a store."""
    shutil.copy(empty_database, bare / "mlflow.db")
    return bare


def _serve(factory: pytest.TempPathFactory, kind: str) -> Iterator[Server]:
    with ExitStack() as stack:
        uri = f"sqlite:///{factory.mktemp('sqlite')}/mlflow.db"
        if kind == "postgresql":
            uri = stack.enter_context(postgres(free_port()))
        server = Server(factory.mktemp("server"), uri)
        stack.callback(server.kill)
        server.start()
        server.make_users()
        yield server


@pytest.fixture(scope="session")
def over_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _serve(tmp_path_factory, "sqlite")


@pytest.fixture(scope="session")
def over_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _serve(tmp_path_factory, "postgresql")


def _login(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    server.start()
    for name, value in server.login(WRITER).items():
        monkeypatch.setenv(name, value)
    # However busy the machine that runs the tests.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    return server


@pytest.fixture
def server(bare: Path, over_sqlite: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server over SQLite, running, with a login for it in the environment."""
    return _login(over_sqlite, monkeypatch)


@pytest.fixture(params=["over_sqlite", "over_postgres"])
def each_server(bare: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The same over SQLite and over PostgreSQL."""
    found: Server = request.getfixturevalue(request.param)
    return _login(found, monkeypatch)
