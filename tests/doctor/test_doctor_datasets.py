"""The folder of prepared datasets: room, whole and damaged sets, what killed preparations left."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from asking import ask, levels
from filelock import FileLock

from rayfl import places
from rayfl.data import DataConfig, locate, open_dataset, prepare
from rayfl.data.progress import Progress


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with digits in it."""
    root = tmp_path_factory.mktemp("root")
    prepare(locate(DataConfig(name="digits", root=str(root))), "raise", Progress(live=False))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it, with the times of its files."""
    return Path(shutil.copytree(made, tmp_path / "root"))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 50)


def free(monkeypatch: pytest.MonkeyPatch, gb: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(gb * 1e9)))


def test_a_root_that_is_not_there_yet(tmp_path: Path) -> None:
    (found,) = ask("datasets", tmp_path, tmp_path / "root")
    assert (found.level, "which the first preparation makes" in found.text) == ("ok", True)
    assert not (tmp_path / "root").exists()


def test_the_root_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "elsewhere"))
    (found,) = ask("datasets", tmp_path)
    assert str(tmp_path / "elsewhere") in found.text


def test_whole_sets(root: Path) -> None:
    found = ask("datasets", root, root)
    assert levels(found) == ["ok", "ok"]
    assert found[1].text == "prepared and whole: digits"


def test_little_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1)
    found = ask("datasets", root, root)[0]
    assert (found.level, "only 1.0 GB" in found.text) == ("warning", True)
    assert "RAYFL_DATA" in found.remedy


def test_a_root_that_can_not_be_written_is_a_problem_only_where_it_is_empty(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "can_write", lambda path: False)
    assert levels(ask("datasets", root, root)) == ["warning", "ok"]
    assert levels(ask("datasets", root, tmp_path / "empty")) == ["problem"]


def test_a_torn_file(root: Path) -> None:
    os.truncate(root / "digits" / "train.arrow", 100)
    found = ask("datasets", root, root)[1]
    assert found.level == "warning"
    assert "100 bytes of" in found.text
    assert f"rayfl data prepare digits --root {root}" in found.remedy


def test_a_card_that_is_gone(root: Path) -> None:
    (root / "digits" / "card.json").write_text("{")
    found = ask("datasets", root, root)[1]
    assert (found.level, "no readable card" in found.text) == ("warning", True)


def test_a_set_of_another_release(root: Path) -> None:
    meta = root / "digits" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 0}))
    found = ask("datasets", root, root)[1]
    assert (found.level, "another release" in found.text) == ("warning", True)


def test_a_set_that_nobody_knows(root: Path) -> None:
    meta = root / "digits" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "dataset": "abacus"}))
    found = ask("datasets", root, root)[1]
    assert (found.level, "'abacus'" in found.text) == ("warning", True)


def test_a_preparation_that_was_broken_off_and_one_that_goes_on(root: Path) -> None:
    """They differ in who holds the lock."""
    partial = root / ".birds.partial"
    partial.mkdir()
    (partial / "train.image").write_bytes(bytes(5_000_000))
    lock = root / ".birds.lock"
    with FileLock(lock):
        found = ask("datasets", root, root)[2]
        assert (found.level, found.text) == ("ok", "birds is being prepared at this moment")
    found = ask("datasets", root, root)[2]
    assert (found.level, "left 5.0 MB" in found.text) == ("warning", True)
    assert str(partial) in found.remedy


def test_what_was_looked_at_still_opens(root: Path) -> None:
    """The checks change nothing."""
    ask("datasets", root, root)
    assert len(open_dataset(DataConfig(name="digits", root=str(root)))[0]) == 1437
