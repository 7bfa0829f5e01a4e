"""Ray's temporary folder: where it is, what keeps Ray from it, what old sessions left."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from asking import ask, levels

from rayfl import places
from rayfl.actors.temp_folder import LONGEST_SOCKET, check_temp_folder, temp_folder
from rayfl.doctor import ray_folder
from rayfl.errors import UserError


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for Ray whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_the_folder_that_ray_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    assert temp_folder() == Path("/tmp/ray")
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert temp_folder() == Path("/scratch/ray")
    monkeypatch.setenv("RAY_TMPDIR", "/fast")
    assert temp_folder() == Path("/fast/ray")


def test_a_usable_folder(short: Path) -> None:
    (found,) = ask("ray_folder", short)
    assert found.level == "ok"
    assert str(short / "ray") in found.text
    assert not (short / "ray").exists()


def test_paths_too_long_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest that passes is one byte shorter than the shortest that is refused."""
    session = f"/ray/session_2000-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
    fits = "/tmp/" + "x" * (LONGEST_SOCKET - len(session) - len("/tmp/"))
    monkeypatch.setenv("RAY_TMPDIR", fits)
    check_temp_folder()
    monkeypatch.setenv("RAY_TMPDIR", fits + "y")
    with pytest.raises(UserError, match=r"is 1 bytes too long.*RAY_TMPDIR"):
        check_temp_folder()


def test_a_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "tmp")
    with pytest.raises(UserError, match="must be an absolute path, got 'tmp/ray'"):
        check_temp_folder()


def test_a_folder_of_somebody_else(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "can_write", lambda path: False)
    with pytest.raises(UserError, match=rf"can't write .*'{short}' belongs to \S+: set RAY_TMPDIR"):
        check_temp_folder()


def disk(monkeypatch: pytest.MonkeyPatch, used_gb: float, free_gb: float) -> None:
    usage = SimpleNamespace(used=int(used_gb * 1e9), free=int(free_gb * 1e9))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def test_a_full_disk(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, 100, 0.01)
    with pytest.raises(UserError, match=r"is full \(10 MB left\)"):
        check_temp_folder()
    disk(monkeypatch, 96, 4)
    _, found = ask("ray_folder", short)
    assert (found.level, "96 % full" in found.text) == ("warning", True)
    disk(monkeypatch, 94, 6)
    assert levels(ask("ray_folder", short)) == ["ok"]


def test_a_network_file_system(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "network_file_system", lambda path: "nfs4")
    _, found = ask("ray_folder", short)
    assert (found.level, "nfs4" in found.text) == ("warning", True)


def test_old_sessions_are_counted_and_live_ones_are_not(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sessions one has a listening socket, one a dead one, one none."""
    for number in range(3):
        (short / "ray" / f"session_{number}" / "sockets").mkdir(parents=True)
        (short / "ray" / f"session_{number}" / "log").write_bytes(bytes(40_960))
    (short / "ray" / "session_latest").symlink_to("session_0")
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as dead:
        live.bind(str(short / "ray" / "session_0" / "sockets" / "raylet"))
        live.listen()
        dead.bind(str(short / "ray" / "session_1" / "sockets" / "raylet"))
        _, found = ask("ray_folder", short)
        assert (found.level, found.text) == ("ok", "2 sessions that have ended left 0 MB in it")
        monkeypatch.setattr(ray_folder, "_MUCH", 80_000)
        _, found = ask("ray_folder", short)
        assert (found.level, found.remedy) == (
            "warning", f"when no Ray runs any more: rm -r {short}/ray/session_*"
        )  # fmt: skip
    _, found = ask("ray_folder", short)
    assert "3 sessions" in found.text
    assert found.remedy == f"remove them: rm -r {short}/ray/session_*"
