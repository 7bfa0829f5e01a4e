"""MNIST and Fashion-MNIST: idx files, packed or not."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from encoders import idx, put
from miniatures import Build, mnist

from rayfl.data.info import Split
from rayfl.data.layouts.mnist import read_idx
from rayfl.errors import UserError


@pytest.mark.parametrize("style", ["packed", "plain", "dotted", "torchvision"])
def test_ways_to_store_the_four_files(style: str, tmp_path: Path, build: Build) -> None:
    mnist(tmp_path)
    for path in sorted(tmp_path.glob("*.gz")):
        plain = path.name.removesuffix(".gz")
        if style != "packed":
            place = {
                "plain": plain,
                "dotted": plain.replace("-idx", ".idx"),
                "torchvision": f"MNIST/raw/{plain}",
            }
            put(tmp_path / place[style], gzip.decompress(path.read_bytes()))
            path.unlink()
    built = build("mnist", tmp_path)
    assert isinstance(built.test, Split)
    assert built.test.images.shape == (20, 1, 28, 28)
    assert built.test.labels.tolist() == [*range(10), *range(10)]
    assert built.class_names == tuple("0123456789")


def test_idx_of_any_shape() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx("x", idx(array)), array)


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1], lambda c: c + b"0", lambda c: b"\1" + c[1:], lambda c: c[:3]]
)
def test_idx_must_be_whole(change: object, tmp_path: Path) -> None:
    assert callable(change)
    with pytest.raises(OSError, match="x isn't a whole idx file"):
        read_idx("x", change(idx(np.zeros((2, 3), dtype=np.uint8))))


def test_a_file_cut_off_is_named(tmp_path: Path, build: Build) -> None:
    mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OSError, match=r"t10k-images-idx3-ubyte\.gz in .* is damaged or cut off"):
        build("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path, build: Build) -> None:
    mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="there is no train-labels-idx1-ubyte"):
        build("mnist", tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"), [([3] * 39, "labels of shape"), ([3] * 39 + [10], "labels up to 10 for 10")]
)
def test_labels_must_fit(labels: list[int], message: str, tmp_path: Path, build: Build) -> None:
    mnist(tmp_path)
    put(tmp_path / "train-labels-idx1-ubyte.gz", gzip.compress(idx(np.array(labels, dtype=np.uint8))))
    with pytest.raises(UserError, match=message):
        build("mnist", tmp_path)


def test_offline(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, naming the file that can't be had."""
    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "mirrors", [(tmp_path / "nowhere").as_uri() + "/"])
    with pytest.raises(OSError, match=r"Error downloading train-images-idx3-ubyte\.gz") as error:
        build("mnist", None)
    assert "\n" not in str(error.value)
