"""Each law is the one that it is named after."""

import logging
import math

import numpy as np
import pytest
from scipy.special import digamma

from rayfl.data import PartitionConfig, partition, sampling, schemes
from rayfl.data.dirichlet import per_class, per_client, two_level
from rayfl.data.minimum import repair

LABELS = np.repeat(np.arange(10), 5000)


def uneven(total: int, num_classes: int) -> np.ndarray:
    """Labels in random order whose classes differ in size, the last one absent."""
    return np.random.default_rng(total).binomial(num_classes - 2, 0.4, total)


TABLE = [  # n, alpha, scheme, size CV, classes held, top share, total variation: measured on independent code
    (100, 0.5, "niid_bench", 0.32, 8.1, 0.42, 0.50),
    (100, 0.5, "per_class", 0.45, 9.3, 0.37, 0.45),
    (100, 0.5, "per_client", 0.0, 9.2, 0.36, 0.44),
    (100, 0.5, "hsu", 0.0, 4.7, 0.69, 0.72),
    (100, 0.3, "niid_bench", 0.41, 7.0, 0.51, 0.59),
    (100, 0.1, "niid_bench", 0.83, 4.3, 0.72, 0.74),
    (100, 0.1, "per_client", 0.0, 5.9, 0.60, 0.67),
    (100, 0.05, "per_client", 0.0, 4.7, 0.69, 0.72),
    # Code that deals out what is left once a client's weights underflow finds 4.4 and 5.1 classes held.
    (100, 0.1, "hsu", 0.0, 3.4, 0.81, 0.78),
    (100, 0.05, "hsu", 0.0, 3.2, 0.81, 0.78),
]


@pytest.mark.parametrize(("n", "alpha", "scheme", "cv", "held", "top", "variation"), TABLE)
def test_statistics_are_those_measured_on_public_code(
    n: int, alpha: float, scheme: str, cv: float, held: float, top: float, variation: float
) -> None:
    config = PartitionConfig(kind="dirichlet", scheme=scheme, alpha=alpha)  # type: ignore[arg-type]
    found = [partition(LABELS, 10, config, n, seed).statistics(LABELS, 10) for seed in range(5)]
    assert np.mean([s.size_cv for s in found]) == pytest.approx(cv, abs=0.08)
    assert np.mean([s.classes_held for s in found]) == pytest.approx(held, abs=0.3)
    assert np.mean([s.top_share for s in found]) == pytest.approx(top, abs=0.03)
    assert np.mean([s.total_variation for s in found]) == pytest.approx(variation, abs=0.02)


def test_niid_bench_gives_nothing_to_the_full() -> None:
    """Whoever holds N/n before a class gets none of it, so sizes stay below N/n plus one class."""
    rng = np.random.default_rng(0)
    sizes = np.full(10, 100)
    for _ in range(20):
        counts = per_class(rng, sizes, 20, 0.2, balance=True)
        before = np.cumsum(counts, axis=1) - counts
        assert not counts[before >= 50].any()
        assert np.array_equal(counts.sum(axis=0), sizes)
    free = per_class(rng, sizes, 20, 0.2, balance=False)
    assert free[np.cumsum(free, axis=1) - free >= 50].any()


def test_per_client_follows_the_plain_loop() -> None:
    """Two clients, weights (0.1, 0.9), ten samples of each class: the law of a cell, sample by sample."""
    rng = np.random.default_rng(1)
    alpha = np.array([1e11, 9e11])  # so large that the weights are the prior itself
    fast = [int(per_client(rng, np.array([10, 10]), 2, alpha)[0, 0]) for _ in range(400)]
    slow = []
    for _ in range(400):
        left, mine = [10, 10], 0
        for client in rng.permutation(np.repeat([0, 1], 10)):
            k = int(rng.random() < 0.9) if all(left) else int(left[0] == 0)
            left[k] -= 1
            mine += client == 0 and k == 0
        slow.append(mine)
    distance = np.abs(np.bincount(fast, minlength=11) - np.bincount(slow, minlength=11)).sum() / 800
    assert distance < 0.15
    assert len(set(fast)) > 5


def test_leftovers_when_every_weight_is_one_hot() -> None:
    counts = per_client(np.random.default_rng(0), np.array([7, 0, 5, 3]), 4, np.full(4, 1e-9))
    assert counts.sum(axis=0).tolist() == [7, 0, 5, 3]
    assert counts.sum(axis=1).tolist() == [4, 4, 4, 3]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0, 50.0])
def test_log_gamma_has_the_moments_of_its_law(alpha: float) -> None:
    draws = sampling.log_gamma(np.random.default_rng(0), np.full(40_000, alpha))
    assert np.exp(draws).mean() == pytest.approx(alpha, abs=4 * math.sqrt(alpha / 40_000))
    assert draws.mean() == pytest.approx(digamma(alpha), abs=5 * draws.std() / 200)


def test_hsu_is_per_client_with_alpha_over_classes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rayfl.data"):
        hsu = partition(LABELS, 10, PartitionConfig(kind="dirichlet", scheme="hsu", alpha=5.0), 50, 3)
    assert "alpha=5 there is alpha=0.5 under per_client" in caplog.text
    caplog.clear()
    plain = partition(LABELS, 10, PartitionConfig(kind="dirichlet", scheme="per_client", alpha=0.5), 50, 3)
    assert hsu.hash == plain.hash
    assert not caplog.records


def test_shards_are_runs_of_the_sorted_labels() -> None:
    labels = uneven(1003, 7)
    p = partition(labels, 7, PartitionConfig(kind="shards", shards_per_client=2), 20, 0)
    place = np.empty(1003, dtype=int)
    place[np.argsort(labels, kind="stable")] = np.arange(1003)
    for r in p.indices:
        gaps = np.diff(np.sort(place[r])) != 1
        assert gaps.sum() <= 1
        assert 50 <= len(r) <= 52


def test_pathological_holders() -> None:
    config = PartitionConfig(kind="pathological", classes_per_client=3)
    counts = partition(LABELS, 10, config, 25, 0).statistics(LABELS, 10).counts
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert all(counts[i, i % 10] > 0 for i in range(25))
    for k in range(10):
        held = counts[counts[:, k] > 0, k]
        assert held.sum() == 5000
        assert held.max() - held.min() <= 1
    few = partition(LABELS, 10, PartitionConfig(kind="pathological", classes_per_client=1), 3, 0)
    assert few.statistics(LABELS, 10).counts.sum(axis=0).tolist() == [5000] * 3 + [0] * 7


def test_quantity_keeps_labels_even_and_sizes_uneven() -> None:
    for law, sigma in (("dirichlet", 1.0), ("lognormal", 1.5)):
        config = PartitionConfig(kind="quantity", quantity_law=law, sigma=sigma)  # type: ignore[arg-type]
        s = partition(LABELS, 10, config, 20, 0).statistics(LABELS, 10)
        assert s.size_cv > 0.7
        assert s.total_variation < 0.1
    flat = PartitionConfig(kind="quantity", quantity_law="lognormal", sigma=0.0)
    assert partition(LABELS, 10, flat, 20, 0).statistics(LABELS, 10).size_cv < 1e-3


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(r) for r in partition(LABELS[:1003], 10, PartitionConfig(), 20, 0).indices]
    assert set(sizes) == {50, 51}


@pytest.mark.parametrize("scheme", ["niid_bench", "per_class", "per_client", "hsu"])
@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e6, 1e300])
def test_extreme_alphas_are_their_limits(scheme: str, alpha: float) -> None:
    config = PartitionConfig(kind="dirichlet", scheme=scheme, alpha=alpha, min_size=0)  # type: ignore[arg-type]
    s = partition(LABELS, 10, config, 10, 0).statistics(LABELS, 10)
    assert s.counts.sum() == 50_000
    if alpha > 1:
        assert s.total_variation < 0.02
    elif scheme in ("niid_bench", "per_class"):
        assert ((s.counts == 0) | (s.counts == 5000)).all()
    else:
        assert s.top_share > 0.5


@pytest.mark.parametrize("scheme", ["niid_bench", "per_class"])
def test_repair_moves_only_what_is_missing(scheme: str) -> None:
    config = {"kind": "dirichlet", "scheme": scheme, "alpha": 0.01, "max_tries": 3}
    p = partition(LABELS, 10, PartitionConfig(**config, min_size=30, on_small="repair"), 100, 0)
    sizes = np.array([len(r) for r in p.indices])
    assert p.tries == 3
    assert sizes.min() == 30
    assert sizes.sum() == 50_000


def test_repair_by_hand() -> None:
    """Client 1 needs two: one of class 1 from client 0 (five), then again from client 0 (four, the first)."""
    counts = np.array([[2, 3], [0, 0], [4, 0]])
    assert repair(counts, 2).tolist() == [[1, 2], [1, 1], [4, 0]]
    assert counts.tolist() == [[2, 3], [0, 0], [4, 0]]


def test_a_weight_however_small_is_followed_when_classes_run_out() -> None:
    """Both clients want class 0; who finds it gone goes to class 1, e^800 times likelier than class 2.

    In float64 both weights are 0 beside that of class 0, and code that works there deals out 1 and 2 alike.
    """
    logs, left = np.array([[0.0, -800.0, -1600.0]]), np.array([[False, True, True]])
    assert not np.exp(logs)[left].any()
    assert sampling.shares(logs, left).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.2, 0.5, 0.8, 1.0])
def test_dominant_is_exact_where_classes_suffice(ratio: float) -> None:
    """20 clients of 250 samples: ratio * 250 of class i mod 10 to within a sample, the others even."""
    counts = schemes.dominant(np.random.default_rng(0), np.full(10, 500), 20, ratio)
    assert (counts.sum(axis=1) == 250).all()
    assert (counts.sum(axis=0) == 500).all()
    lead = np.arange(20) % 10
    assert np.abs(counts[np.arange(20), lead] - ratio * 250).max() <= 1
    others = counts[np.arange(10)[None] != lead[:, None]].reshape(20, 9)
    assert np.abs(others - (1 - ratio) * 250 / 9).max() <= 2


def test_dominant_divides_a_scarce_class_among_those_it_dominates() -> None:
    """Class 1 (30 samples) dominates clients 1, 3 and 5, who want 80 each: they get 10 and 90 of class 0."""
    counts = schemes.dominant(np.random.default_rng(0), np.array([570, 30, 0]), 6, 0.8)
    assert counts[:, 1].tolist() == [0, 10, 0, 10, 0, 10]
    assert (counts.sum(axis=1) == 100).all()
    assert not counts[:, 2].any()


def test_dominant_deals_out_everything_whatever_the_classes() -> None:
    rng = np.random.default_rng(0)
    for n, ratio, _ in np.ndindex(12, 3, 4):
        sizes = rng.integers(0, 60, 7)
        counts = schemes.dominant(rng, sizes, n + 1, ratio / 2)
        assert (counts >= 0).all()
        assert np.array_equal(counts.sum(axis=0), sizes)
        assert np.ptp(counts.sum(axis=1)) <= 1


def test_domain_gives_each_client_one_domain_and_each_domain_as_many_clients() -> None:
    """Seven clients over three domains: the largest has three."""
    domains = np.repeat([5, 2, 9], [10_000, 25_000, 15_000])
    for law in ({}, {"within": "dirichlet", "alpha": 0.1, "scheme": "per_client"}):
        p = partition(LABELS, 10, PartitionConfig(kind="domain", **law), 7, 0, domains=domains)  # type: ignore[arg-type]
        s = p.statistics(LABELS, 10, domains)
        assert s.domain_counts is not None
        assert s.domain_counts.argmax(axis=1).tolist() == [2, 2, 2, 5, 5, 9, 9]
        assert ((s.domain_counts > 0).sum(axis=1) == 1).all()
        assert np.ptp(s.sizes[:3]) <= 1
        assert np.ptp(s.sizes[5:]) <= 1


def test_domain_dirichlet_is_skewed_by_class_and_repaired_within() -> None:
    domains = np.arange(50_000) % 2
    options = {"kind": "domain", "alpha": 0.01, "max_tries": 2, "on_small": "repair"}
    even, skewed = (
        partition(LABELS, 10, PartitionConfig(**options, within=within), 40, 0, domains=domains)  # type: ignore[arg-type]
        for within in ("iid", "dirichlet")
    )
    assert even.statistics(LABELS, 10).total_variation < 0.1
    assert skewed.statistics(LABELS, 10).total_variation > 0.6
    assert min(map(len, skewed.indices)) == 10
    assert skewed.tries == 2
    assert all(len(set(domains[r])) == 1 for r in skewed.indices)


def test_natural_never_divides_a_group() -> None:
    """One client per domain, in order; more groups than clients are dealt whole and evenly."""
    labels, domains = np.zeros(60, dtype=int), np.repeat([3, 1, 7], [10, 20, 30])
    by_domain = PartitionConfig(kind="natural", natural_by="domain")
    p = partition(labels, 1, by_domain, 3, 0, domains=domains)
    assert [set(domains[r]) for r in p.indices] == [{1}, {3}, {7}]
    groups = np.random.default_rng(0).integers(0, 300, 4000)
    largest = np.bincount(groups).max()
    found = set()
    for seed in range(5):
        p = partition(np.zeros(4000), 1, PartitionConfig(kind="natural"), 17, seed, groups=groups)
        owners = np.empty(4000, dtype=int)
        for i, rows in enumerate(p.indices):
            owners[rows] = i
        assert all(len(set(owners[groups == g])) == 1 for g in range(300) if (groups == g).any())
        assert np.ptp([len(r) for r in p.indices]) <= largest
        found.add(p.hash)
    assert len(found) == 5


def test_natural_is_dealt_again_until_nobody_is_too_small() -> None:
    """Units of 9, 1, 1 and 1 to two clients: 3 for the small one, unless the large one isn't dealt last."""
    groups = np.repeat([0, 1, 2, 3], [9, 1, 1, 1])
    config = PartitionConfig(kind="natural", min_size=3)
    tries = [partition(np.zeros(12), 1, config, 2, seed, groups=groups).tries for seed in range(20)]
    assert min(tries) == 1
    assert max(tries) > 1


def test_two_level_skews_edges_by_one_alpha_and_their_clients_by_the_other() -> None:
    def found(scheme: str, alpha_edge: float, alpha: float) -> tuple[float, float]:
        config = PartitionConfig(kind="two_level", scheme=scheme, alpha_edge=alpha_edge, alpha=alpha)  # type: ignore[arg-type]
        p = partition(LABELS, 10, config, 20, 0, num_edges=4)
        assert p.edges == tuple(i // 5 for i in range(20))
        s = p.statistics(LABELS, 10)
        assert s.edge_variation is not None
        assert s.within_edge_variation is not None
        return s.edge_variation, s.within_edge_variation

    for scheme in ("niid_bench", "per_class", "per_client"):
        edge, within = found(scheme, 0.3, 1e4)
        assert edge > 0.4
        assert within < 0.03
        edge, within = found(scheme, 1e4, 0.3)
        assert edge < 0.03
        assert within > 0.4


def test_two_level_gives_an_edge_its_clients_share() -> None:
    """Edges of 1 and 3 clients: sizes are equal under per_client, and niid_bench stops at the fair share."""
    rng, sizes = np.random.default_rng(0), np.full(10, 100)
    counts = two_level(rng, sizes, [1, 3], "per_client", 0.2, 0.2)
    assert counts.sum(axis=1).tolist() == [250] * 4
    for _ in range(20):
        counts = per_class(rng, sizes, 2, 0.2, True, np.array([1, 3]))
        before = np.cumsum(counts, axis=1) - counts
        assert not counts[0][before[0] >= 250].any()
        assert not counts[1][before[1] >= 750].any()
