"""ISIC 2018 task 1: every image with its mask."""

import io
from pathlib import Path

import numpy as np
import pytest
from miniatures import Build, isic2018
from PIL import Image

from rayfl.data.info import Files


def test_masks_belong_to_their_images(tmp_path: Path, build: Build) -> None:
    isic2018(tmp_path)
    built = build("isic2018", tmp_path)
    assert (built.task, built.class_names) == ("segmentation", ("lesion",))
    for split, first in ((built.train, 0), (built.test, 1000)):
        assert isinstance(split, Files)
        assert split.mask_names is not None
        assert [Path(n).stem for n in split.names] == [f"ISIC_{first + i:07}" for i in range(20)]
        assert [Path(n).stem for n in split.mask_names] == [
            f"{Path(n).stem}_segmentation" for n in split.names
        ]
        mask = np.asarray(Image.open(io.BytesIO(split.read(split.mask_names[0]))))
        assert set(np.unique(mask)) == {0, 255}
        assert not split.labels.any()


@pytest.mark.parametrize(
    ("splits", "test"),
    [
        (("Training", "Validation"), "Validation"),
        (("Training", "Test", "Validation"), "Test"),
        (("Training",), "Training"),
    ],
)
def test_which_images_test(splits: tuple[str, ...], test: str, tmp_path: Path, build: Build) -> None:
    isic2018(tmp_path, splits)
    built = build("isic2018", tmp_path)
    assert isinstance(built.test, Files)
    assert {name.split("_")[2] for name in built.test.names} == {test}
    sizes = (16, 4) if test == "Training" else (20, 20)
    assert (len(built.train.labels), len(built.test.labels)) == sizes
    assert built.test.mask_names is not None
    assert [Path(n).stem[:12] for n in built.test.mask_names] == [Path(n).stem for n in built.test.names]


def test_a_missing_mask_is_named(tmp_path: Path, build: Build) -> None:
    isic2018(tmp_path)
    (tmp_path / "ISIC2018_Task1_Training_GroundTruth" / "ISIC_0000007_segmentation.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 20 images .* the first is ISIC_0000007_segmentation"):
        build("isic2018", tmp_path)
