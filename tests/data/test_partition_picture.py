"""The picture is drawn for any number of clients and classes."""

from pathlib import Path

import numpy as np
import pytest

from rayfl.data import Partition, draw_partition


@pytest.mark.parametrize(("n", "num_classes"), [(3, 10), (61, 12), (1000, 40)])
def test_any_size(tmp_path: Path, n: int, num_classes: int) -> None:
    labels = np.arange(2000) % num_classes
    p = Partition.of(np.array_split(np.arange(2000), n))
    draw_partition(p, labels, num_classes, tmp_path / "p.png", "title")
    content = (tmp_path / "p.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 10_000 < len(content) < 500_000


def test_empty_clients(tmp_path: Path) -> None:
    draw_partition(Partition.of([[], [0, 1]]), [0, 1], 2, tmp_path / "p.png", "title")
    draw_partition(Partition.of([[], []]), [0, 1], 2, tmp_path / "q.png", "title")
    assert (tmp_path / "p.png").read_bytes() != (tmp_path / "q.png").read_bytes()
