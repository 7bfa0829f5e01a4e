"""The picture is drawn for any number of clients, classes, domains and edges."""

import re
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import DataConfig, Partition, PartitionConfig, check_picture, describe, draw_partition
from rayfl.errors import UserError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("n", "num_classes"), [(3, 10), (300, 40)])
def test_any_size(tmp_path: Path, n: int, num_classes: int) -> None:
    labels = np.arange(900) % num_classes
    edges = np.arange(n) * 7 % 3
    p = Partition.of(np.array_split(np.arange(900), n), edges=edges.tolist())
    draw_partition(
        p,
        labels,
        num_classes,
        tmp_path / "p.png",
        "title",
        domains=np.arange(900) % 2,
        domain_names=["a", "b"],
    )
    content = (tmp_path / "p.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 10_000 < len(content) < 500_000


def test_it_tells_domains_and_edges(tmp_path: Path) -> None:
    """In words that a PDF or SVG can be searched for; clients stand by edge server."""
    rows, labels = np.array_split(np.arange(40), 4), np.arange(40) % 2
    p = Partition.of(rows, edges=[1, 0, 1, 0])
    path = tmp_path / "p.svg"
    draw_partition(p, labels, 2, path, "t", domains=np.arange(40) // 20, domain_names=["Vienna", "Porto"])
    text = path.read_text()
    for word in (
        "Vienna",
        "Porto",
        "edge 0",
        "edge 1",
        "clients, sorted by edge server",
        "2 edges, 20 to 20",
    ):
        assert f"<!-- {word}" in text
    below = text[text.index('id="axes_3"') :]
    assert re.findall(r'id="xtick_\d+".*?<!-- (\d) -->', below, re.S) == ["1", "3", "0", "2"]
    draw_partition(Partition.of(rows), labels, 2, path, "t")
    assert "edge" not in "".join(line for line in path.read_text().splitlines() if "<!--" in line)


def test_empty_clients(tmp_path: Path) -> None:
    draw_partition(Partition.of([[], [0, 1]]), [0, 1], 2, tmp_path / "p.part", "title")
    draw_partition(Partition.of([[], []]), [0, 1], 2, tmp_path / "q.png", "title")
    assert (tmp_path / "p.part").read_bytes() != (tmp_path / "q.png").read_bytes()
    assert (tmp_path / "p.part").read_bytes().startswith(b"\x89PNG")


def test_titles_name_the_law() -> None:
    law = PartitionConfig(kind="two_level", alpha_edge=0.1, alpha=1.0)
    expected = "mnist5k, two_level niid_bench, alpha_edge 0.1, alpha 1, seed 3"
    assert describe(DataConfig(partition=law), 3) == expected
    assert describe(DataConfig(edge_map="random"), 0) == "mnist5k, iid, edges random, seed 0"


def test_unknown_types_are_refused() -> None:
    for path in ("who.png", "a/who.PDF", "who.svg"):
        check_picture(path)
    with pytest.raises(UserError, match=r"picture x\.foo has unknown type '\.foo': name it \.png"):
        check_picture("x.foo")
    with pytest.raises(UserError, match=r"picture x has no type: name it x\.png"):
        check_picture("x")
