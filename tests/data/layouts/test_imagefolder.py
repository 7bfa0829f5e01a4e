"""A folder per class, with or without splits above; ImageNet."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from encoders import encoded, pack, put
from miniatures import Build, imagefolder, imagenet

from rayfl.data.info import Files
from rayfl.errors import UserError


def tree(path: Path, *folders: str, count: int = 5) -> None:
    for k, folder in enumerate(folders):
        for i in range(count):
            put(path / folder / f"{i}.jpg", encoded(k, i))


def test_a_fifth_of_each_class_is_held_out(tmp_path: Path, build: Build) -> None:
    imagefolder(tmp_path)
    built = build("imagefolder", tmp_path)
    assert np.bincount(built.test.labels).tolist() == [2, 2, 2]
    assert built.class_names == ("ant", "bee", "cat")


@pytest.mark.parametrize(
    ("folders", "classes", "sizes"),
    [
        ("train/a train/b test/a test/b", "ab", (10, 10)),
        ("train/a train/b val/a val/b", "ab", (10, 10)),
        ("Training/a Training/b validation/a validation/b", "ab", (10, 10)),
        ("train/a train/b val/a val/b test/a", "ab", (20, 5)),
        ("train/a train/b", "ab", (8, 2)),
        ("a/deep/deeper b", "ab", (8, 2)),
        ("wrapped/a wrapped/b", "ab", (8, 2)),
        ("wrapped/train/a wrapped/test/a", "a", (5, 5)),
        ("a", "a", (4, 1)),
    ],
)
def test_trees(folders: str, classes: str, sizes: tuple[int, int], tmp_path: Path, build: Build) -> None:
    tree(tmp_path / "source", *folders.split())
    built = build("imagefolder", tmp_path / "source")
    assert built.class_names == tuple(classes)
    assert (len(built.train.labels), len(built.test.labels)) == sizes


def test_train_may_be_a_class(tmp_path: Path, build: Build) -> None:
    tree(tmp_path, "bus", "train", "tram")
    assert build("imagefolder", tmp_path).class_names == ("bus", "train", "tram")


def test_the_folder_that_holds_the_archive(tmp_path: Path, build: Build) -> None:
    imagefolder(tmp_path / "work")
    (tmp_path / "source").mkdir()
    pack(tmp_path / "source" / "pets.zip", tmp_path / "work")
    assert build("imagefolder", tmp_path / "source").class_names == ("ant", "bee", "cat")


def test_one_image_of_a_class_is_kept_for_training(tmp_path: Path, build: Build) -> None:
    tree(tmp_path, *(f"rare{k}" for k in range(10)), count=1)
    tree(tmp_path, "common", count=20)
    built = build("imagefolder", tmp_path)
    assert np.bincount(built.train.labels, minlength=11).min() > 0


def test_other_folders_beside_the_splits_are_no_classes(tmp_path: Path, build: Build) -> None:
    tree(tmp_path, "train/a", "test/a")
    put(tmp_path / "docs" / "figures" / "notes.txt", "")
    assert build("imagefolder", tmp_path).class_names == ("a",)


def test_faults(tmp_path: Path, build: Build) -> None:
    tree(tmp_path, "train/a", "train/b", "test/a")
    (tmp_path / "train" / "c").mkdir()
    with pytest.raises(UserError, match="class 'c' has no training images"):
        build("imagefolder", tmp_path)
    (tmp_path / "train" / "c").rmdir()
    tree(tmp_path, "test/d")
    with pytest.raises(UserError, match="class 'd' has no training images"):
        build("imagefolder", tmp_path)
    shutil.rmtree(tmp_path / "test" / "d")
    put(tmp_path / "train" / "loose.jpg", encoded(0))
    with pytest.raises(UserError, match=r"image train/loose\.jpg in .* lies in no class folder"):
        build("imagefolder", tmp_path)
    tree(tmp_path, "more/a")
    with pytest.raises(UserError, match="has more beside the folders test, train"):
        build("imagefolder", tmp_path)


@pytest.mark.parametrize("place", ["", "ILSVRC/Data/CLS-LOC"])
def test_imagenet(place: str, tmp_path: Path, build: Build) -> None:
    imagenet(tmp_path / place)
    put(tmp_path / place / "test" / "ILSVRC2012_test_1.JPEG", encoded(0))
    built = build("imagenet", tmp_path)
    assert isinstance(built.test, Files)
    assert built.class_names == ("n01443537", "n01629819", "n02123045", "n03544143")
    assert all("/val/" in f"/{name}" for name in built.test.names)
    assert len(built.train.labels) == 32


def test_imagenet_needs_both_in_class_folders(tmp_path: Path, build: Build) -> None:
    imagenet(tmp_path)
    put(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", encoded(0))
    with pytest.raises(UserError, match=r"val/ILSVRC2012_val_00000001\.JPEG .* lies in no class folder"):
        build("imagenet", tmp_path)
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(FileNotFoundError, match="no folder val with class folders"):
        build("imagenet", tmp_path)
