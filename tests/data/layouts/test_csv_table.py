"""A CSV file of paths and labels, which may name split, domain and group."""

import re
from pathlib import Path

import pytest
from encoders import encoded, put, put_table
from miniatures import Build, csv_table

from rayfl.data.info import Files
from rayfl.errors import UserError


def test_every_column_is_read(tmp_path: Path, build: Build) -> None:
    csv_table(tmp_path)
    for source in (tmp_path, tmp_path / "labels.csv"):
        built = build("csv", source)
        assert built.class_names == ("high", "low", "mid")
        assert built.domain_names == ("site0", "site1")
        # 8 and 9 of each class; 7 is for validation, which joins the training images.
        assert isinstance(built.test, Files)
        assert [name[-5] for name in built.test.names] == ["8", "9"] * 3
        assert built.test.domains is not None
        assert built.test.domains.tolist() == [0, 1] * 3
        assert built.test.groups is not None
        assert built.test.groups.tolist() == [4] * 6


def test_labels_alone(tmp_path: Path, build: Build) -> None:
    """Numbers are in numerical order, and a fifth is held out."""
    for i in range(20):
        put(tmp_path / f"{i}.png", encoded(i % 2, kind="PNG"))
    rows = [(tmp_path / f"{i}.png" if i == 3 else f"./{i}.png", (2, 10)[i % 2]) for i in range(20)]
    put_table(tmp_path / "x.csv", ("Image", "TARGET"), rows)
    built = build("csv", tmp_path / "x.csv")
    assert built.class_names == ("2", "10")
    assert (len(built.train.labels), len(built.test.labels)) == (16, 4)
    assert (built.train.domains, built.train.groups, built.domain_names) == (None, None, ())


def test_groups_stay_together(tmp_path: Path, build: Build) -> None:
    csv_table(tmp_path)
    path = tmp_path / "labels.csv"
    put(path, re.sub(",(train|val|test),", ",", path.read_text()).replace(",split,", ","))
    built = build("csv", path)
    assert built.train.groups is not None
    assert built.test.groups is not None
    assert not set(built.train.groups) & set(built.test.groups)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("path,", "place,", "lacks a column path or image or file or filename: it has place, label"),
        (",label,", ",kind,", "lacks a column label or class or target"),
        (",train,", ",trian,", "unknown split 'trian': did you mean 'train'?"),
        ("images/high0", "../images/high0", r"lists \.\./images/high0\.png, outside its folder"),
        ("images/high0", "/etc/high0", "lists /etc/high0.png, outside its folder"),
        ("images/high0", "images/none", r"1 of 30 images listed in labels\.csv .* images/none\.png"),
        (",site0", "", r"line 2 of labels\.csv has 4 columns, not 5"),
        (",site0", ',"site0', r"labels\.csv isn't a whole CSV file"),
        ("site0", "s\udce9", r"labels\.csv isn't UTF-8 \(byte"),
    ],
)
def test_wrong_tables(old: str, new: str, message: str, tmp_path: Path, build: Build) -> None:
    csv_table(tmp_path)
    path = tmp_path / "labels.csv"
    put(path, path.read_text().replace(old, new, 1).encode("utf-8", "surrogateescape"))
    with pytest.raises((UserError, FileNotFoundError), match=message):
        build("csv", tmp_path)


def test_a_class_in_the_test_split_alone(tmp_path: Path, build: Build) -> None:
    csv_table(tmp_path)
    path = tmp_path / "labels.csv"
    put(path, path.read_text().replace("low,train", "low,test").replace("low,val", "low,test"))
    with pytest.raises(UserError, match=r"class 'low' has no training images in labels\.csv"):
        build("csv", tmp_path)


def test_which_file(tmp_path: Path, build: Build) -> None:
    csv_table(tmp_path)
    put(tmp_path / "images" / "deeper.csv", "no,matter\n")
    assert len(build("csv", tmp_path).train.labels) == 24
    put(tmp_path / "other.csv", "no,matter\n")
    with pytest.raises(FileNotFoundError, match="has 2 CSV files, not one: name the file itself"):
        build("csv", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none\.csv doesn't exist"):
        build("csv", tmp_path / "none.csv")
