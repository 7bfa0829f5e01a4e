"""What holds for every reader: right labels on the right images, one split for ever, nothing written."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from encoders import label_of
from miniatures import MINIATURES, Build

from rayfl.data import DataConfig
from rayfl.data.info import Files, Split
from rayfl.data.layouts import LAYOUTS

SIZES = {
    "mnist": (40, 20, 10),
    "fashion_mnist": (40, 20, 10),
    "cifar10": (50, 10, 10),
    "cifar100": (40, 10, 5),
    "tiny_imagenet": (32, 12, 4),
    "imagenet": (32, 12, 4),
    "domainnet": (30, 12, 3),
    "imagefolder": (24, 6, 3),
    "csv": (24, 6, 3),
    "npz": (40, 12, 4),
    "parquet": (27, 9, 3),
    "isic2018": (20, 20, 1),
}
"""Training images, test images, classes; the others' depend on how lesions are drawn."""


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def seen(split: Split | Files) -> list[int]:
    """The label that each image's own pixels tell."""
    if isinstance(split, Files):
        return [label_of(split.read(name)) for name in split.names]
    return [round((float(red.mean()) - 10) / 20) for red in split.images[:, 0]]


@pytest.mark.parametrize("name", MINIATURES)
def test_images_have_their_labels(name: str, tmp_path: Path, build: Build) -> None:
    source = tmp_path / "source"
    MINIATURES[name](source)
    before = listing(source)
    built = build(name, source)
    if name in SIZES:
        assert (len(built.train.labels), len(built.test.labels), built.num_classes) == SIZES[name]
    assert len(built.class_names) == len(set(built.class_names)) == built.num_classes
    for split in (built.train, built.test):
        assert split.labels.dtype == np.int64
        if built.task == "classification":
            assert seen(split) == split.labels.tolist()
            assert set(split.labels) == set(range(built.num_classes))
        for numbers in (split.domains, split.groups):
            assert numbers is None or (numbers.dtype == np.int64 and numbers.shape == split.labels.shape)
        assert (split.domains is not None) == bool(built.domain_names)
    assert listing(source) == before


@pytest.mark.parametrize("name", MINIATURES)
def test_the_split_is_the_same_elsewhere(name: str, tmp_path: Path, build: Build) -> None:
    """Not a matter of where the files are or of what was drawn before."""
    splits = []
    for folder in ("one", "two"):
        MINIATURES[name](tmp_path / folder)
        np.random.default_rng().random()
        built = build(name, tmp_path / folder)
        splits.append([built.train.labels.tolist(), built.test.labels.tolist()])
        if isinstance(built.train, Files) and isinstance(built.test, Files):
            splits[-1] += [list(built.train.names), list(built.test.names)]
            assert not set(built.train.names) & set(built.test.names)
    assert splits[0] == splits[1]


@pytest.mark.parametrize(
    "name", ["tiny_imagenet", "ham10000", "isic2019", "isic2018", "imagenet", "domainnet"]
)
@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_one_archive_of_everything_is_a_source(name: str, kind: str, tmp_path: Path, build: Build) -> None:
    if name == "tiny_imagenet":
        MINIATURES[name](tmp_path / "packed")
        shutil.unpack_archive(tmp_path / "packed" / "tiny-imagenet-200.zip", tmp_path / "source")
    else:
        MINIATURES[name](tmp_path / "source")
        for inner in (tmp_path / "source").glob("*.zip"):
            shutil.unpack_archive(inner, tmp_path / "source" / inner.stem)
            inner.unlink()
    archive = Path(shutil.make_archive(str(tmp_path / "all"), kind, tmp_path / "source"))
    from_folder, from_archive = build(name, tmp_path / "source"), build(name, archive)
    assert from_archive.train.labels.tolist() == from_folder.train.labels.tolist()
    assert isinstance(from_folder.train, Files)
    assert isinstance(from_archive.train, Files)
    last = from_archive.train.names[-1]
    assert from_archive.train.read(last) == from_folder.train.read(from_folder.train.names[-1])
    # What was unpacked on the way is gone with its readers.
    del from_archive
    assert not list((tmp_path / "root").rglob("*.jpg"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_empty_folder_is_refused(name: str, tmp_path: Path, build: Build) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(FileNotFoundError) as error:
        build(name, tmp_path / "nothing")
    message = str(error.value)
    assert str(tmp_path / "nothing") in message
    assert "\n" not in message


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_the_table(name: str) -> None:
    info = LAYOUTS[name]
    assert info.remedy
    assert info.licence
    assert "\n" not in info.description + info.remedy
    if info.outline is None:
        assert info.needs_source
    else:
        outline = info.outline(DataConfig(name=name))
        channels = outline.shape[0]
        if info.normalisation is not None:
            assert len(info.normalisation.mean) == len(info.normalisation.std) == channels


@pytest.mark.parametrize(
    ("name", "total", "test", "classes"),
    [
        ("mnist", 60_000, 10_000, 10),
        ("fashion_mnist", 60_000, 10_000, 10),
        ("cifar10", 50_000, 10_000, 10),
        ("cifar100", 50_000, 10_000, 100),
        ("tiny_imagenet", 100_000, 10_000, 200),
        ("imagenet", 1_281_167, 50_000, 1000),
        ("domainnet", 409_832, 176_743, 345),
        ("isic2018", 2594, 1000, 1),
        ("ham10000", 8012, 2003, 7),
        ("isic2019", 20_264, 5067, 8),
    ],
)
def test_outlines_add_up(name: str, total: int, test: int, classes: int) -> None:
    """To the official totals; of HAM10000 10,015 and ISIC 2019 25,331 in all."""
    outline = LAYOUTS[name].outline
    assert outline is not None
    known = outline(DataConfig(name=name))
    assert (sum(known.class_counts), known.num_test, len(known.class_counts)) == (total, test, classes)
