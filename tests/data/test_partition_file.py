"""Partitions in files: the same again, or refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import Partition, PartitionConfig, load_partition, partition, save_partition
from rayfl.errors import UserError

LABELS = np.repeat(np.arange(10), 500)


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    p = partition(LABELS, 10, PartitionConfig(kind="dirichlet"), 10, 0)
    path = tmp_path / "p.npz"
    save_partition(p, path, LABELS)
    q = load_partition(path)
    assert (q.hash, q.tries) == (p.hash, p.tries)
    assert [f.name for f in tmp_path.iterdir()] == ["p.npz"]
    config = PartitionConfig(kind="file", path=str(path))
    assert partition(LABELS, 10, config, 10, 99).hash == p.hash
    with pytest.raises(UserError, match="made for another training set"):
        partition((LABELS + 1) % 10, 10, config, 10, 99)
    with pytest.raises(UserError, match=f"holds {p.hash}, this experiment was set up with 0123"):
        partition(LABELS, 10, PartitionConfig(kind="file", path=str(path), file_hash="0123"), 10, 99)
    with pytest.raises(UserError, match=r"has 10 clients, data\.num_clients=9"):
        partition(LABELS, 10, config, 9, 0)
    with pytest.raises(UserError, match="another training set than this one of 4000"):
        partition(LABELS[:4000], 10, config, 10, 0)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 cut off", b"no archive"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.npz"
    with pytest.raises(UserError, match="isn't there"):
        load_partition(path)
    path.write_bytes(content)
    with pytest.raises(UserError, match="can't be read"):
        load_partition(path)


class Trap:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_pickles_and_double_rows_in_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    trap = tmp_path / "trap"
    np.savez(path, rows=np.array([Trap(trap)], dtype=object), sizes=[1], tries=1)
    with pytest.raises(UserError, match="can't be read"):
        load_partition(path)
    assert not trap.exists()
    np.savez(path, rows=[1, 2, 1], sizes=[2, 1], tries=1)
    with pytest.raises(UserError, match="row twice"):
        load_partition(path)
    np.savez(path, rows=[1, 2, 3], sizes=[2, 2], tries=1)
    with pytest.raises(UserError, match="rows and sizes that don't fit"):
        load_partition(path)


def test_empty_clients_in_files_need_leave(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    save_partition(Partition.of([[0, 1], []]), path, LABELS)
    with pytest.raises(UserError, match="empty clients"):
        partition(LABELS, 10, PartitionConfig(kind="file", path=str(path)), 2, 0)
    allowed = PartitionConfig(kind="file", path=str(path), min_size=0)
    assert [len(r) for r in partition(LABELS, 10, allowed, 2, 0).indices] == [2, 0]


def test_files_carry_the_edge_map(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    config = PartitionConfig(kind="file", path=str(path))
    p = partition(LABELS, 10, PartitionConfig(kind="two_level"), 6, 0, num_edges=3)
    save_partition(p, path, LABELS)
    q = partition(LABELS, 10, config, 6, 9, num_edges=3)
    assert (q.edges, q.hash) == ((0, 0, 1, 1, 2, 2), p.hash)
    assert load_partition(path).hash == p.hash
    for wrong in (2, 4):
        with pytest.raises(UserError, match=f"3 edge servers, data.num_edges={wrong} was asked"):
            partition(LABELS, 10, config, 6, 0, num_edges=wrong)


def test_files_without_an_edge_map_leave_it_to_the_request(tmp_path: Path) -> None:
    """As all files did before there were edge maps."""
    path = tmp_path / "p.npz"
    np.savez(path, rows=[1, 2, 0], sizes=[2, 1], tries=1)
    assert load_partition(path).edges is None
    for edges in ([0], [0, -1], [[0, 1]]):
        np.savez(path, rows=[1, 2, 0], sizes=[2, 1], tries=1, edges=edges)
        with pytest.raises(UserError, match="edge map that doesn't fit"):
            load_partition(path)
