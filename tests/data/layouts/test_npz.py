"""Numpy archives as MedMNIST's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import Build, npz

from rayfl.data.info import Split
from rayfl.errors import UserError


def test_validation_images_join_the_training_images(tmp_path: Path, build: Build) -> None:
    npz(tmp_path)
    for source in (tmp_path, tmp_path / "minimnist.npz"):
        built = build("npz", source)
        assert isinstance(built.train, Split)
        assert built.train.images.shape == (40, 3, 28, 28)
        assert built.train.images[33, :, 5, 6].tolist() == [30, 37, 128]


def arrays(count: int = 20) -> dict[str, Any]:
    return {"train_images": np.zeros((count, 6, 5), dtype=np.uint8), "train_labels": np.arange(count) % 2}


def test_grey_images_without_a_test_split(tmp_path: Path, build: Build) -> None:
    np.savez(tmp_path / "x.npz", **arrays())
    built = build("npz", tmp_path)
    assert isinstance(built.train, Split)
    assert built.train.images.shape == (16, 1, 6, 5)
    assert np.bincount(built.test.labels).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": np.zeros((20, 14), dtype=np.uint8)}, "14 labels per image: only one"),
        ({"train_labels": np.zeros(19, dtype=np.uint8)}, "has 19 train_labels for 20 train_images"),
        ({"train_labels": np.full(20, 0.5)}, "train_labels of float64"),
        ({"train_labels": np.arange(20) - 1}, "number classes from 0"),
        ({"train_labels": np.arange(20) % 2 * 2}, "class '1' has no training images"),
        ({"train_images": np.zeros((20, 6, 5))}, r"train_images float64 \[20, 6, 5\]: they must be uint8"),
        ({"train_images": np.zeros((20, 8, 8, 8), dtype=np.uint8)}, "they must be uint8"),
        ({"test_images": np.zeros((4, 6, 5), dtype=np.uint8)}, "has no test_labels for 4 test_images"),
        (
            {"test_images": np.zeros((4, 9, 9), dtype=np.uint8), "test_labels": np.zeros(4, dtype=int)},
            "images of several sizes",
        ),
        ({"train_images": np.array([{}] * 20)}, "isn't an .npz file of plain arrays"),
    ],
)
def test_wrong_arrays(change: dict[str, Any], message: str, tmp_path: Path, build: Build) -> None:
    np.savez(tmp_path / "x.npz", **{**arrays(), **change})
    with pytest.raises(UserError, match=message):
        build("npz", tmp_path)


def test_other_files(tmp_path: Path, build: Build) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros(3))
    with pytest.raises(UserError, match="lacks train_images and train_labels: it has images"):
        build("npz", tmp_path)
    npz(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has 2 \.npz files, not one"):
        build("npz", tmp_path)
    path = tmp_path / "minimnist.npz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(OSError, match=r"minimnist\.npz is damaged or cut off"):
        build("npz", path)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(UserError, match=r"isn't an \.npz file"):
        build("npz", path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"isn't an \.npz file"):
        build("npz", tmp_path / "one.npy")
