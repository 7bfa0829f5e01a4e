"""Which clients an edge server serves."""

import numpy as np
import pytest

from rayfl.data import EDGE_MAPS, PartitionConfig, partition
from rayfl.data.edge_map import blocks, by_domain, edge_map, label_diverse, label_similar
from rayfl.data.statistics import measure, mixes
from rayfl.errors import UserError

LABELS = np.repeat(np.arange(10), 300)


def skewed(n: int, scheme: str, alpha: float, seed: int) -> tuple[np.ndarray, ...]:
    config = PartitionConfig(kind="dirichlet", scheme=scheme, alpha=alpha, min_size=1)  # type: ignore[arg-type]
    return partition(LABELS, 10, config, n, seed).indices


def sizes(edges: tuple[int, ...] | np.ndarray, num_edges: int) -> list[int]:
    return np.bincount(edges, minlength=num_edges).tolist()


def test_blocks_are_contiguous_and_equal_to_within_one() -> None:
    assert blocks(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert edge_map("blocks", 2, 0, np.ones((5, 3), dtype=np.int64), None) == (0, 0, 0, 1, 1)
    assert blocks(2, 4).tolist() == [0, 2]


def test_random_is_seeded_and_equal_in_clients() -> None:
    counts = np.ones((23, 3), dtype=np.int64)
    maps = [edge_map("random", 4, seed, counts, None) for seed in range(6)]
    assert len(set(maps)) == 6
    assert edge_map("random", 4, 3, counts, None) == maps[3]
    assert all(sorted(sizes(m, 4)) == [5, 6, 6, 6] for m in maps)
    assert edge_map("random", 3, 7, np.ones((6, 1), dtype=np.int64), None) == (2, 1, 0, 0, 2, 1)


@pytest.mark.parametrize(("n", "num_edges"), [(30, 5), (31, 4), (10, 10), (3, 5), (12, 1)])
def test_label_similar_beats_random_on_skewed_clients(n: int, num_edges: int) -> None:
    """In the mean distance of clients to their edge's class shares: by a sixth and more, where it can."""
    for scheme, alpha, seed in (("niid_bench", 0.3, 0), ("per_class", 0.2, 1), ("per_client", 0.1, 2)):
        rows = skewed(n, scheme, alpha, seed)
        counts = measure(rows, LABELS, 10).counts
        within = {}
        for kind in ("label_similar", "random"):
            edges = edge_map(kind, num_edges, seed, counts, None)  # type: ignore[arg-type]
            assert sorted(sizes(edges, num_edges)) == sorted(sizes(blocks(n, num_edges), num_edges))
            within[kind] = measure(rows, LABELS, 10, edges=edges).within_edge_variation
        assert within["label_similar"] is not None
        assert within["random"] is not None
        if 1 < num_edges < n:
            assert within["label_similar"] < 5 / 6 * within["random"]
        else:
            assert within["label_similar"] == pytest.approx(within["random"], abs=1e-12)


def test_label_similar_puts_like_to_like() -> None:
    """Three kinds of clients in turn, and one without samples, which fills the gap."""
    counts = np.array([[9, 1, 0], [0, 9, 1], [1, 0, 9]] * 3)
    counts[7] = 0
    assert label_similar(counts, 3).tolist() == [0, 1, 2] * 2 + [0, 1, 2]


def test_label_similar_is_a_minimum_under_exchanges() -> None:
    """No two clients would be nearer to the centres of their edges, in squared distance, if they changed."""
    rng = np.random.default_rng(0)
    mix = mixes(rng.integers(0, 40, (24, 6)))
    edges = label_similar((mix * 10**6).astype(np.int64), 4)
    centres = np.stack([mix[edges == e].mean(axis=0) for e in range(4)])
    distance = ((mix[:, None] - centres[None]) ** 2).sum(axis=2)
    for i in range(24):
        for j in range(24):
            now = distance[i, edges[i]] + distance[j, edges[j]]
            assert distance[i, edges[j]] + distance[j, edges[i]] > now - 1e-6


@pytest.mark.parametrize(("n", "num_edges"), [(30, 5), (31, 4), (10, 10), (3, 5), (12, 1)])
def test_label_diverse_edges_are_nearer_to_the_whole(n: int, num_edges: int) -> None:
    """In the mean distance of edges' class shares to those of all: by a tenth and more, where it can."""
    for scheme, alpha, seed in (("niid_bench", 0.3, 0), ("per_class", 0.2, 1), ("per_client", 0.1, 2)):
        rows = skewed(n, scheme, alpha, seed)
        counts = measure(rows, LABELS, 10).counts
        apart = {}
        for kind in ("label_diverse", "random", "label_similar"):
            edges = edge_map(kind, num_edges, seed, counts, None)  # type: ignore[arg-type]
            assert sorted(sizes(edges, num_edges)) == sorted(sizes(blocks(n, num_edges), num_edges))
            apart[kind] = measure(rows, LABELS, 10, edges=edges).edge_variation
        found = [apart[kind] for kind in ("label_diverse", "random", "label_similar")]
        if 1 < num_edges < n:
            assert found[0] < 9 / 10 * found[1] < found[2]  # type: ignore[operator]
        else:
            assert found == pytest.approx([found[0]] * 3, abs=1e-12)


def test_label_diverse_gives_each_edge_some_of_each() -> None:
    """Two clients of each of three classes, in any order: every edge of three has one of each. Clients that
    all are like the whole go in blocks."""
    for order in ([0, 1, 2, 3, 4, 5], [5, 2, 0, 3, 1, 4]):
        counts = np.repeat(np.eye(3, dtype=np.int64) * 9, 2, axis=0)[order]
        edges = label_diverse(counts, 2)
        assert [sorted(counts[edges == e].argmax(axis=1)) for e in (0, 1)] == [[0, 1, 2]] * 2
        assert edges[0] == 0
    assert label_diverse(np.ones((5, 3), dtype=np.int64), 2).tolist() == [0, 0, 0, 1, 1]


def test_one_edge_per_domain() -> None:
    assert by_domain(np.array([4, 4, 1, 9, 1, 9]), 3).tolist() == [0, 0, 1, 2, 1, 2]


def test_several_domains_per_edge_even_in_clients() -> None:
    """Domains of 4, 3, 2 and 1 clients over two edges: 4 + 1 and 3 + 2."""
    domain = np.repeat([0, 1, 2, 3], [4, 3, 2, 1])
    assert by_domain(domain, 2).tolist() == [0] * 4 + [1] * 5 + [0]


def test_several_edges_per_domain_even_in_clients() -> None:
    """Domains of 6, 3 and 1 clients over five edges: 3, 1 and 1 of two, three and one clients."""
    domain = np.repeat([0, 1, 2], [6, 3, 1])
    assert by_domain(domain, 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4]


def test_no_edge_is_empty_while_clients_suffice() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, num_edges, num_domains = rng.integers(1, 15, 3)
        domain = rng.integers(0, num_domains, n)
        edges = by_domain(domain, int(num_edges))
        assert len(np.unique(edges)) == min(n, num_edges)
        assert edges.max() < num_edges
        together = edges[:, None] == edges[None]
        same = domain[:, None] == domain[None]
        if num_edges <= len(np.unique(domain)):
            assert together[same].all()
        else:
            assert not together[~same].any()


def test_the_domain_of_a_client_is_that_of_most_of_its_samples() -> None:
    domains = np.array([[4, 5], [3, 0], [1, 2]])
    assert edge_map("domain", 2, 0, np.ones((3, 2), dtype=np.int64), domains) == (0, 1, 0)


def test_refusals() -> None:
    counts = np.ones((4, 2), dtype=np.int64)
    with pytest.raises(UserError, match="needs a set with domains, this one has none"):
        edge_map("domain", 2, 0, counts, None)
    with pytest.raises(UserError, match=r"unknown data\.edge_map 'label': did you mean 'label_similar'"):
        edge_map("label", 2, 0, counts, None)  # type: ignore[arg-type]
    assert set(EDGE_MAPS) == {"blocks", "random", "label_similar", "label_diverse", "domain"}
