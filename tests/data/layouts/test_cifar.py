"""CIFAR: official folders, archives and downloads; pickles that try something are stopped."""

import hashlib
import os
import pickle
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from encoders import put, python2_pickle
from miniatures import Build, batch, cifar10, cifar100

from rayfl.data.info import Split
from rayfl.errors import UserError


def official(source: Path) -> Path:
    """The folder itself."""
    return source / "cifar-10-batches-py"


def archived(source: Path) -> Path:
    """The official archive."""
    with tarfile.open(source / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(official(source), arcname="cifar-10-batches-py")
    shutil.rmtree(official(source))
    return source / "cifar-10-python.tar.gz"


@pytest.mark.parametrize(
    "place", [official, archived, lambda source: archived(source).parent, lambda source: source]
)
def test_folder_archive_or_where_they_lie(
    place: Callable[[Path], Path], tmp_path: Path, build: Build
) -> None:
    cifar10(tmp_path / "source")
    built = build("cifar10", place(tmp_path / "source"))
    assert isinstance(built.train, Split)
    assert built.train.images.shape == (50, 3, 32, 32)
    assert built.train.images[3, :, 7, 9].tolist() == [70, 111, 128]  # channels first, in the order RGB
    assert built.class_names[9] == "kind9"


def test_cifar100_has_fine_labels(tmp_path: Path, build: Build) -> None:
    cifar100(tmp_path)
    built = build("cifar100", tmp_path / "cifar-100-python.tar.gz")
    assert built.class_names == tuple(f"fine{k}" for k in range(5))
    assert np.bincount(built.train.labels).tolist() == [8] * 5


class Evil:
    """A pickle that runs a command."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("value", [Evil(), {"data": Evil()}, np.array([Evil()], dtype=object)])
def test_a_pickle_can_run_nothing(
    value: object, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cifar10(tmp_path)
    put(official(tmp_path) / "data_batch_2", pickle.dumps(value))
    with pytest.raises(OSError, match=r"data_batch_2 .*\(it asks for posix\.mkdir, which no array needs"):
        build("cifar10", tmp_path)
    assert not Path("evil").exists()


def test_a_batch_cut_off_is_named(tmp_path: Path, build: Build) -> None:
    cifar10(tmp_path)
    path = official(tmp_path) / "data_batch_4"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(OSError, match=r"data_batch_4 in .* can't be read .*get it again"):
        build("cifar10", tmp_path)


def test_a_missing_batch_is_named(tmp_path: Path, build: Build) -> None:
    cifar10(tmp_path)
    (official(tmp_path) / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match="no cifar-10-batches-py/data_batch_4 or data_batch_4 in"):
        build("cifar10", tmp_path)


def test_labels_must_fit(tmp_path: Path, build: Build) -> None:
    cifar10(tmp_path)
    put(official(tmp_path) / "data_batch_1", python2_pickle(batch(12, 12)))
    with pytest.raises(UserError, match="labels up to 11 for 10 classes"):
        build("cifar10", tmp_path)
    put(official(tmp_path) / "data_batch_1", python2_pickle({**batch(12, 10), "labels": [1, 2]}))
    with pytest.raises(UserError, match="42 labels for images of shape"):
        build("cifar10", tmp_path)


def test_other_files_than_the_official_ones_are_said_to_be(
    tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    cifar10(tmp_path)
    build("cifar10", tmp_path)
    assert len(caplog.messages) == 1
    assert "not the official files" in caplog.text
    assert "data_batch_1" in caplog.text


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of the test's own folder."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_download(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """Into the data folder, held against the official checksums."""
    from torchvision.datasets import CIFAR10

    cifar10(tmp_path / "server")
    md5 = {f.name: hashlib.md5(f.read_bytes()).hexdigest() for f in official(tmp_path / "server").iterdir()}
    archive = archived(tmp_path / "server")
    monkeypatch.setattr(CIFAR10, "url", f"{server}/server/{archive.name}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(
        CIFAR10, "train_list", [[f"data_batch_{i}", md5[f"data_batch_{i}"]] for i in range(1, 6)]
    )
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5["batches.meta"]})
    assert len(build("cifar10", None).train.labels) == 50
    assert (tmp_path / "root" / "downloads" / "cifar10" / "cifar-10-batches-py").is_dir()
    archive.unlink()
    assert len(build("cifar10", None).train.labels) == 50  # not downloaded twice


@pytest.mark.parametrize(("wrong", "message"), [("none.gz", "404"), ("other.gz", "corrupted")])
def test_a_download_that_fails(
    wrong: str, message: str, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """No such file, or another than the official one."""
    from torchvision.datasets import CIFAR10

    (tmp_path / "other.gz").write_bytes(b"something else")
    monkeypatch.setattr(CIFAR10, "url", f"{server}/{wrong}")
    with pytest.raises(OSError, match=message):
        build("cifar10", None)
