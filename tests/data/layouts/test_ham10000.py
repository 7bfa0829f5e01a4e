"""HAM10000: no lesion on both sides, whatever the order of the metadata."""

from pathlib import Path

import numpy as np
import pytest
from encoders import put
from miniatures import Build, ham10000

from rayfl.data.info import Files
from rayfl.errors import UserError


def test_no_lesion_is_on_both_sides(tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    built = build("ham10000", tmp_path)
    train, test = built.train, built.test
    assert train.groups is not None
    assert test.groups is not None
    assert not set(train.groups) & set(test.groups)
    assert len(set(train.groups) | set(test.groups)) == 42
    assert len(set(test.groups)) == round(0.2 * 42)
    # Lesions of each class: 1.2 of 6 on average, so one or two.
    lesions = [len(set(test.groups[test.labels == k])) for k in range(7)]
    assert set(lesions) <= {1, 2}
    assert len(train.labels) + len(test.labels) == 63


def test_domains_and_dangerous_classes(tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    built = build("ham10000", tmp_path)
    assert built.domain_names == ("rosendahl", "vidir_modern")
    assert isinstance(built.train, Files)
    assert built.train.domains is not None
    odd = [int(name[-6]) % 2 for name in built.train.names]  # the lesion's number
    assert built.train.domains.tolist() == [1 - o for o in odd]
    assert [built.class_names[k] for k in built.non_benign] == ["akiec", "bcc", "mel"]


def test_the_order_of_rows_is_of_no_account(tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path / "one")
    ham10000(tmp_path / "two", order=-1)
    one, two = build("ham10000", tmp_path / "one"), build("ham10000", tmp_path / "two")
    assert isinstance(one.test, Files)
    assert isinstance(two.test, Files)
    assert list(one.test.names) == list(two.test.names)


@pytest.mark.parametrize("ending", [".csv", ".tab"])
def test_spellings_of_the_metadata(ending: str, tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    path = tmp_path / "HAM10000_metadata"
    text = path.read_text()
    put(path.with_suffix(ending), text.replace(",", "\t") if ending == ".tab" else "\ufeff" + text)
    path.unlink()
    assert len(build("ham10000", tmp_path).class_names) == 7


def test_without_collections_there_are_no_domains(tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    path = tmp_path / "HAM10000_metadata"
    put(path, "\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()))
    built = build("ham10000", tmp_path)
    assert built.domain_names == ()
    assert built.train.domains is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",bcc,", ",scc,", "unknown diagnosis in HAM10000_metadata 'scc': known: akiec"),
        ("lesion_id", "wound_id", "HAM10000_metadata lacks the column lesion_id: it has wound_id"),
        (",ear,vidir", ",ear,left,vidir", "line 2 of HAM10000_metadata has 9 columns, not 8"),
        ("male", "\udce9", "HAM10000_metadata isn't UTF-8"),
    ],
)
def test_wrong_metadata(old: str, new: str, message: str, tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    path = tmp_path / "HAM10000_metadata"
    put(path, path.read_text().replace(old, new, 1).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=message):
        build("ham10000", tmp_path)


def test_absent_images(tmp_path: Path, build: Build) -> None:
    ham10000(tmp_path)
    (tmp_path / "HAM10000_images_part_2.zip").unlink()
    with pytest.raises(FileNotFoundError, match=r"27 of 63 images .* the first is ISIC_0000400"):
        build("ham10000", tmp_path)
    put(tmp_path / "HAM10000_metadata", "lesion_id,image_id,dx\n")
    with pytest.raises(UserError, match="has no rows"):
        build("ham10000", tmp_path)


def test_a_share_of_a_large_set() -> None:
    """A fifth of the lesions is about a fifth of the images, class by class."""
    from rayfl.data.layouts.splitting import held_out

    rng = np.random.default_rng(0)
    groups = np.sort(rng.integers(0, 3000, 5000))
    labels = groups % 7
    test = held_out(labels, "any", groups)
    shares = np.bincount(labels[test]) / np.bincount(labels)
    assert shares.min() > 0.16
    assert shares.max() < 0.24
    assert not set(groups[test]) & set(groups[~test])
