"""Parquet files as the Hugging Face hub has them."""

from pathlib import Path
from typing import Any

import pytest
from encoders import encoded, label_of
from miniatures import Build, parquet

from rayfl.data.info import Files
from rayfl.errors import UserError


def write(path: Path, labels: list[Any], images: list[Any] | None = None, label: str = "label") -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {name: k for k, name in enumerate(sorted(set(map(str, labels))))}
    images = images or [encoded(kinds[str(value)], kind="PNG") for value in labels]
    pq.write_table(pa.table({"img": images, label: labels}), path, row_group_size=3)


def test_class_names_come_from_the_schema(tmp_path: Path, build: Build) -> None:
    parquet(tmp_path)
    built = build("parquet", tmp_path)
    assert built.class_names == ("zebra", "yak", "ox")
    assert isinstance(built.train, Files)
    # In any order, across files and row groups.
    for row in (26, 0, 14, 15, 3):
        name = built.train.names[row]
        assert label_of(built.train.read(name)) == built.train.labels[row]


def test_one_row_group_at_a_time(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading in order reads each row group once, and nothing before it is asked for."""
    from rayfl.data.layouts.parquet import Shards

    parquet(tmp_path)
    read: list[tuple[str, int]] = []
    original = Shards._read_group

    def counting(self: Shards, file: str, group: int) -> Any:
        read.append((file, group))
        return original(self, file, group)

    monkeypatch.setattr(Shards, "_read_group", counting)
    built = build("parquet", tmp_path)
    assert read == []
    assert isinstance(built.train, Files)
    for name in built.train.names:
        built.train.read(name)
    assert len(read) == len(set(read)) == 6


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "b", "a"] * 3, ("a", "b")),
        ([5, 10, 5, 10] * 3, ("5", "10")),
        ([True, False] * 6, ("False", "True")),
    ],
)
def test_plain_labels(labels: list[Any], names: tuple[str, ...], tmp_path: Path, build: Build) -> None:
    """Text or numbers, images as plain bytes, one file without a split."""
    write(tmp_path / "0000.parquet", labels)
    built = build("parquet", tmp_path / "0000.parquet")
    assert built.class_names == names
    assert (len(built.train.labels), len(built.test.labels)) == (10, 2)


def test_which_files_test(tmp_path: Path, build: Build) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", ["a", "b"] * 4)
    write(tmp_path / "validation-00000-of-00001.parquet", ["a", "b"] * 2)
    built = build("parquet", tmp_path)
    assert (len(built.train.labels), len(built.test.labels)) == (8, 4)
    write(tmp_path / "test-00000-of-00001.parquet", ["a", "b", "b"])
    built = build("parquet", tmp_path)
    assert (len(built.train.labels), len(built.test.labels)) == (12, 3)


def test_withheld_labels_are_left_out(tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "train-0.parquet", [0, 1] * 4)
    write(tmp_path / "valid-0.parquet", [0, 1] * 2)
    write(tmp_path / "test-0.parquet", [-1] * 5)
    built = build("parquet", tmp_path)
    assert (len(built.train.labels), len(built.test.labels)) == (8, 4)
    assert "5 of 17 rows" in caplog.text
    assert isinstance(built.test, Files)
    assert [label_of(built.test.read(n)) for n in built.test.names] == [0, 1, 0, 1]


def test_faults(tmp_path: Path, build: Build) -> None:
    path = tmp_path / "train-0.parquet"
    write(path, [[1, 0], [0, 1]] * 2)
    with pytest.raises(UserError, match="labels in column label are neither numbers nor text"):
        build("parquet", tmp_path)
    write(path, ["a", "b"] * 2, label="caption")
    with pytest.raises(UserError, match=r"train-0\.parquet lacks a column label or .*: it has img, caption"):
        build("parquet", tmp_path)
    write(path, ["a", "b"] * 4, images=[b""] * 8)
    built = build("parquet", tmp_path)
    assert isinstance(built.train, Files)
    with pytest.raises(OSError, match=r"train-0\.parquet#0#0 holds no image bytes"):
        built.train.read(built.train.names[0])
    write(tmp_path / "train-1.parquet", ["a", "b"] * 2, label="class")
    with pytest.raises(UserError, match=r"train-1\.parquet lacks the column label"):
        build("parquet", tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(OSError, match=r"train-0\.parquet is damaged or cut off"):
        build("parquet", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none doesn't exist"):
        build("parquet", tmp_path / "none")


def test_a_label_beyond_the_named_classes(tmp_path: Path, build: Build) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet(tmp_path)
    path = tmp_path / "data" / "test-00000-of-00001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "label", pa.array([3] * 9)), path)
    with pytest.raises(UserError, match="unknown label 3 in column label: its 3 classes are named"):
        build("parquet", tmp_path)
