"""ISIC 2019: centres and splits as FLamby has them, or without its files as far as the official ones tell."""

from pathlib import Path

import pytest
from encoders import put, put_table
from miniatures import ISIC_CLASSES, Build, isic2019

from rayfl.data.info import Built, Files
from rayfl.errors import UserError

CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")


def centres(built: Built) -> dict[int, str]:
    """Number in the image's name -> centre."""
    found = {}
    for split in (built.train, built.test):
        assert isinstance(split, Files)
        assert split.domains is not None
        for name, domain in zip(split.names, split.domains, strict=True):
            found[int(name.rpartition("ISIC_")[2][:7])] = built.domain_names[domain]
    return found


def test_centres(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    built = build("isic2019", tmp_path)
    assert built.domain_names == (*CENTRES, "unknown")
    by_lesion = ["BCN", "HAM_vidir_molemax", "MSK", "HAM_vienna_dias", "unknown"]
    assert centres(built) == {i: by_lesion[i % 100 // 10] for i in centres(built)}
    assert [ISIC_CLASSES[k] for k in built.non_benign] == ["MEL", "BCC", "AK", "SCC"]


def test_without_the_metadata_of_ham_it_is_one_centre(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    (tmp_path / "HAM10000_metadata").unlink()
    built = build("isic2019", tmp_path)
    assert built.domain_names == ("BCN", "HAM", "MSK", "unknown")
    assert set(centres(built).values()) == set(built.domain_names)


def test_no_lesion_is_on_both_sides(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    built = build("isic2019", tmp_path)
    assert built.train.groups is not None
    assert built.test.groups is not None
    assert not set(built.train.groups) & set(built.test.groups)
    # 32 lesions that are known, and 8 images each on its own.
    assert len({*built.train.groups, *built.test.groups}) == 40


def test_the_order_of_rows_is_of_no_account(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    before = build("isic2019", tmp_path).test
    path = tmp_path / "ISIC_2019_Training_GroundTruth.csv"
    header, *rows = path.read_text().splitlines()
    put(path, "\n".join([header, *reversed(rows)]))
    after = build("isic2019", tmp_path).test
    assert isinstance(before, Files)
    assert isinstance(after, Files)
    assert after.names == before.names


def test_without_metadata(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    (tmp_path / "ISIC_2019_Training_Metadata.csv").unlink()
    built = build("isic2019", tmp_path)
    assert (built.train.domains, built.train.groups, built.domain_names) == (None, None, ())
    assert len(built.test.labels) == round(0.2 * 56)


def test_flamby_decides_where_its_file_is(tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    ids = [
        line.split(",")[0] for line in (tmp_path / "ISIC_2019_Training_GroundTruth.csv").read_text().split()
    ]
    rows = [(i, n % 6, "test" if n % 4 == 0 else "train") for n, i in enumerate(ids[1:41])]
    put_table(tmp_path / "train_test_split", ("image", "center", "fold"), rows)
    built = build("isic2019", tmp_path)
    assert built.domain_names == CENTRES
    assert isinstance(built.test, Files)
    assert [Path(name).stem for name in built.test.names] == sorted(
        i for i, _, fold in rows if fold == "test"
    )
    assert len(built.train.labels) == 30
    assert centres(built) == {int(i[5:12]): CENTRES[centre] for i, centre, _ in rows}
    for bad, message in (
        ((ids[1], 6, "train"), "unknown centre '6'"),
        ((ids[1], 0, "x"), "unknown split 'x'"),
    ):
        put_table(tmp_path / "train_test_split", ("image", "center", "fold"), [bad])
        with pytest.raises(UserError, match=message):
            build("isic2019", tmp_path)


@pytest.mark.parametrize(("old", "new", "count"), [("1.0", "0.0", 0), ("1.0,0.0", "1.0,1.0", 2)])
def test_one_label_per_image(old: str, new: str, count: int, tmp_path: Path, build: Build) -> None:
    isic2019(tmp_path)
    path = tmp_path / "ISIC_2019_Training_GroundTruth.csv"
    put(path, path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"ISIC_0000000 in .* has {count} of the 8 labels, not one"):
        build("isic2019", tmp_path)
