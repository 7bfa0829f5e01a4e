"""Tiny-ImageNet: the official zip or folder; official validation images are the test split."""

import io
import shutil
from pathlib import Path

import pytest
from encoders import put
from miniatures import Build, tiny_imagenet
from PIL import Image

from rayfl.data.info import Files
from rayfl.errors import UserError


@pytest.mark.parametrize("place", [".", "tiny-imagenet-200.zip", "out", "out/tiny-imagenet-200"])
def test_zip_or_folder(place: str, tmp_path: Path, build: Build) -> None:
    tiny_imagenet(tmp_path)
    shutil.unpack_archive(tmp_path / "tiny-imagenet-200.zip", tmp_path / "out")
    if place == ".":
        shutil.rmtree(tmp_path / "out")
    built = build("tiny_imagenet", tmp_path / place)
    assert isinstance(built.train, Files)
    assert built.train.shape == (3, 64, 64)
    # Ids in order, two of which mean "goldfish".
    assert built.class_names == ("goldfish (n01443537)", "salamander", "tabby", "goldfish (n03544143)")
    modes = {Image.open(io.BytesIO(built.train.read(name))).mode for name in built.train.names}
    assert modes == {"L", "RGB"}


def test_faults(tmp_path: Path, build: Build) -> None:
    tiny_imagenet(tmp_path, packed=False)
    base = tmp_path / "tiny-imagenet-200"
    annotations = base / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    put(annotations, whole.replace("n01443537", "n09999999", 1))
    with pytest.raises(UserError, match=r"unknown class in .*val_annotations\.txt 'n09999999'"):
        build("tiny_imagenet", tmp_path)
    put(annotations, whole + "val_77.JPEG\n")
    with pytest.raises(UserError, match=r"val_annotations\.txt in .* isn't 'image <tab> class"):
        build("tiny_imagenet", tmp_path)
    put(annotations, whole)
    (base / "val" / "images" / "val_5.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 12 images .* the first is val_5\.JPEG"):
        build("tiny_imagenet", tmp_path)
    put(base / "train" / "n00000001" / "images" / "x.JPEG", b"")
    with pytest.raises(UserError, match="unknown class folder of train 'n00000001'"):
        build("tiny_imagenet", tmp_path)
    shutil.rmtree(base / "train" / "n00000001")
    shutil.rmtree(base / "train" / "n02123045")
    with pytest.raises(UserError, match="class 'n02123045' has no training images"):
        build("tiny_imagenet", tmp_path)
