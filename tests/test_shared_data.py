"""One data root for many processes: eight prepare one set at once; offline; half a download in the root."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rayfl.data import DATASETS, Built, DataConfig, DatasetInfo, locate, open_dataset, prepare
from rayfl.data.bundled import build_digits
from rayfl.data.catalogue import FILES
from rayfl.data.progress import Progress
from rayfl.errors import UserError

PROCESSES = 8
NOBODY = "http://127.0.0.1:9/cifar-10-python.tar.gz"
"""The discard port, where no web server is."""


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(name="slow_digits", root=str(tmp_path / "root"))


@pytest.fixture
def built_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each building of the dataset ``slow_digits``, which takes three seconds."""
    file = tmp_path / "built_by"

    def build(config: DataConfig, source: Path | None) -> Built:
        with file.open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(3)
        return build_digits(config, source)

    monkeypatch.setitem(DATASETS, "slow_digits", DatasetInfo(build=build, description="", remedy=""))
    return file


def _open(config: DataConfig, barrier: Any, results: Any) -> None:
    barrier.wait()
    made = prepare(locate(config), "raise", Progress(live=False))
    train, test = open_dataset(config)
    results.put((made, os.getpid(), len(train), len(test)))


@pytest.mark.slow
def test_eight_processes_prepare_one_copy(
    config: DataConfig, built_by: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One builds; the seven others say that they wait, and find the copy."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=_open, args=(config, barrier, results)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    (maker,) = [pid for made, pid, _, _ in found if made]
    assert built_by.read_text().split() == [str(maker)]
    assert {(train, test) for _, _, train, test in found} == {(1437, 360)}
    folder = locate(config).folder
    waiting = f"rayfl: another process is preparing {folder}: waiting for it"
    assert capfd.readouterr().err.splitlines() == [waiting] * (PROCESSES - 1)
    assert {path.name for path in folder.parent.iterdir()} == {"slow_digits", ".slow_digits.lock"}
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """CIFAR-10, whose mirror can't be reached."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(CIFAR10, "url", NOBODY)
    return DataConfig(name="cifar10", root=str(tmp_path / "root"))


def test_without_internet_the_message_says_what_to_get_and_where_to_put_it(cifar10: DataConfig) -> None:
    with pytest.raises(UserError) as error:
        open_dataset(cifar10)
    (line,) = str(error.value).splitlines()
    assert "get cifar-10-python.tar.gz from https://" in line
    assert f"rayfl data prepare cifar10 --source PATH --root {cifar10.root}" in line
    assert not locate(cifar10).folder.exists()


def test_half_a_download_in_the_root_is_not_taken_for_the_archive(cifar10: DataConfig) -> None:
    """A download that was killed: without internet, the message is as if it were not there."""
    archive = Path(cifar10.root or "") / "downloads" / "cifar10" / "cifar-10-python.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"\x1f\x8b half of it")
    with pytest.raises(UserError, match=r"can't be prepared .*get cifar-10-python.tar.gz from"):
        open_dataset(cifar10)
    assert not locate(cifar10).folder.exists()


def test_half_an_archive_given_as_source_is_named(cifar10: DataConfig, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(b"\x1f\x8b half of it")
    given = DataConfig(name="cifar10", root=cifar10.root, source=str(archive))
    with pytest.raises(
        UserError, match=r"cifar-10-python.tar.gz is damaged or cut off.*: get cifar-10-python.tar.gz from"
    ):
        open_dataset(given)
    assert not locate(given).folder.exists()
