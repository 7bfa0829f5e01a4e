"""Partitions: disjoint, complete, bounded in time, the same everywhere, each of the law it is named after."""

import hashlib
import logging
import math
import os
import random
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import digamma

from rayfl.data import (
    SCHEMES,
    Partition,
    PartitionConfig,
    load_partition,
    partition,
    sampling,
    save_partition,
    schemes,
)
from rayfl.errors import UserError

LABELS = np.repeat(np.arange(10), 5000)
LAWS = {
    "iid": {"kind": "iid"},
    **{
        f"dirichlet/{s}": {"kind": "dirichlet", "scheme": s}
        for s in ("niid_bench", "per_class", "per_client", "hsu")
    },
    "shards": {"kind": "shards"},
    "pathological": {"kind": "pathological"},
    "quantity": {"kind": "quantity"},
    "quantity/lognormal": {"kind": "quantity", "quantity_law": "lognormal"},
}


def uneven(total: int, num_classes: int) -> np.ndarray:
    """Labels in random order whose classes differ in size, the last one absent."""
    return np.random.default_rng(total).binomial(num_classes - 2, 0.4, total)


@pytest.mark.parametrize("law", LAWS)
def test_every_sample_goes_to_exactly_one_client_and_nobody_gets_too_few(law: str) -> None:
    for n, alpha, seed, labels in product(
        (1, 3, 60), (0.1, 100.0), range(2), (LABELS[::25], uneven(1777, 7))
    ):
        num_classes = 10 if len(labels) == 2000 else 7
        config = PartitionConfig(**LAWS[law], alpha=alpha, min_size=5, on_small="repair", max_tries=20)
        if law == "pathological" and num_classes == 7:
            continue  # a client may be left with the rare classes only, which is refused
        p = partition(labels, num_classes, config, n, seed)
        assert len(p.indices) == n
        rows = np.concatenate(p.indices)
        assert len(np.unique(rows)) == len(rows)
        if law != "pathological" or n >= num_classes:
            assert np.array_equal(np.sort(rows), np.arange(len(labels)))
        for r in p.indices:
            assert r.dtype == np.int64
            assert (np.diff(r) > 0).all()
            assert len(r) >= 5
            assert not r.flags.writeable
        again = partition(labels, num_classes, config, n, seed)
        assert again.hash == p.hash
        if n > 1:
            assert partition(labels, num_classes, config, n, seed + 100).hash != p.hash


GOLDEN = {
    "iid": "93cafdb64575607c",
    "dirichlet/niid_bench": "5e1364cdf611251c",
    "dirichlet/per_class": "7e60ffcc8cd050f6",
    "dirichlet/per_client": "9739679f340d406c",
    "dirichlet/hsu": "fb1fa57c20e57155",
    "shards": "361de7b20ac45d26",
    "pathological": "51681cd3474363a2",
    "quantity": "37e9afff17faff55",
    "quantity/lognormal": "696b5f885cca4177",
}


@pytest.mark.parametrize("law", LAWS)
def test_hashes_are_those_of_every_process_and_numpy(law: str) -> None:
    p = partition(LABELS[::25], 10, PartitionConfig(**LAWS[law], alpha=0.3), 10, 7)
    assert p.hash == GOLDEN[law]


def test_hash_is_sha256_of_lengths_and_rows() -> None:
    text = b"".join(v.to_bytes(8, "little") for v in (2, 1, 4, 1, 3))
    assert Partition.of([[4, 1], [3]]).hash == hashlib.sha256(text).hexdigest()[:16]
    assert Partition.of([[4], [1, 3]]).hash != Partition.of([[4, 1], [3]]).hash


TABLE = [  # n, alpha, scheme, size CV, classes held, top share, total variation: measured on independent code
    (100, 0.5, "niid_bench", 0.32, 8.1, 0.42, 0.50),
    (100, 0.5, "per_class", 0.45, 9.3, 0.37, 0.45),
    (100, 0.5, "per_client", 0.0, 9.2, 0.36, 0.44),
    (100, 0.5, "hsu", 0.0, 4.7, 0.69, 0.72),
    (100, 0.3, "niid_bench", 0.41, 7.0, 0.51, 0.59),
    (100, 0.3, "per_class", 0.55, 8.1, 0.45, 0.54),
    (100, 0.3, "per_client", 0.0, 8.3, 0.44, 0.52),
    (100, 0.1, "niid_bench", 0.83, 4.3, 0.72, 0.74),
    (100, 0.1, "per_client", 0.0, 5.9, 0.60, 0.67),
    (100, 0.05, "per_client", 0.0, 4.7, 0.69, 0.72),
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


def test_statistics_by_hand() -> None:
    s = Partition.of([[0, 1, 2], [3], []]).statistics([0, 0, 1, 1], 2)
    assert s.counts.tolist() == [[2, 1], [0, 1], [0, 0]]
    assert s.size_cv == pytest.approx(np.std([3, 1, 0]) / (4 / 3))
    assert s.classes_held == 1.5
    assert s.top_share == pytest.approx((2 / 3 + 1) / 2)
    assert s.total_variation == pytest.approx((1 / 6 + 1 / 2) / 2)
    assert s.line().startswith("3 clients, 0 to 3 samples")


def test_niid_bench_gives_nothing_to_the_full() -> None:
    """Whoever holds N/n before a class gets none of it, so sizes stay below N/n plus one class."""
    rng = np.random.default_rng(0)
    sizes = np.full(10, 100)
    for _ in range(20):
        counts = schemes.per_class(rng, sizes, 20, 0.2, balance=True)
        before = np.cumsum(counts, axis=1) - counts
        assert not counts[before >= 50].any()
        assert np.array_equal(counts.sum(axis=0), sizes)
    free = schemes.per_class(rng, sizes, 20, 0.2, balance=False)
    assert free[np.cumsum(free, axis=1) - free >= 50].any()


def test_per_client_follows_the_plain_loop() -> None:
    """Two clients, weights (0.1, 0.9), ten samples of each class: the law of a cell, sample by sample."""
    rng = np.random.default_rng(1)
    alpha = np.array([1e11, 9e11])  # so large that the weights are the prior itself
    fast = [int(schemes.per_client(rng, np.array([10, 10]), 2, alpha)[0, 0]) for _ in range(1500)]
    slow = []
    for _ in range(1500):
        left, mine = [10, 10], 0
        for client in rng.permutation(np.repeat([0, 1], 10)):
            k = int(rng.random() < 0.9) if all(left) else int(left[0] == 0)
            left[k] -= 1
            mine += client == 0 and k == 0
        slow.append(mine)
    distance = np.abs(np.bincount(fast, minlength=11) - np.bincount(slow, minlength=11)).sum() / 3000
    assert distance < 0.08
    assert len(set(fast)) > 5


def test_leftovers_when_every_weight_is_one_hot() -> None:
    counts = schemes.per_client(np.random.default_rng(0), np.array([7, 0, 5, 3]), 4, np.full(4, 1e-9))
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


@pytest.mark.parametrize(
    ("n", "alpha", "scheme"),
    [
        (100, 0.05, "niid_bench"),
        (1000, 0.01, "per_class"),
    ],
)
def test_hopeless_draws_end_with_the_knobs_named(n: int, alpha: float, scheme: str) -> None:
    start = time.process_time()
    config = PartitionConfig(kind="dirichlet", scheme=scheme, alpha=alpha)  # type: ignore[arg-type]
    with pytest.raises(UserError) as e:
        partition(LABELS, 10, config, n, 0)
    assert time.process_time() - start < 10
    message = str(e.value)
    for part in (
        f"num_clients={n}",
        f"alpha={alpha:g}",
        "min_size=10",
        "1000",
        "on_small=repair",
        "partition.min_size",
    ):
        assert part in message
    assert "\n" not in message


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
    assert schemes.repair(counts, 2).tolist() == [[1, 2], [1, 1], [4, 0]]
    assert counts.tolist() == [[2, 3], [0, 0], [4, 0]]


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_impossible_alphas_are_refused(alpha: float, kind: str) -> None:
    with pytest.raises(UserError, match=r"partition\.alpha must be a finite number above 0"):
        partition(LABELS, 10, PartitionConfig(kind=kind, alpha=alpha), 10, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "n", "message"),
    [
        ({}, 41, "num_clients=41 is more than the 40 training samples"),
        ({}, 5, "num_clients=5 with min_size=10 need 50 training samples, there are 40"),
        ({"kind": "dirichlet", "on_small": "repair"}, 5, "need 50 training samples"),
        ({"kind": "shards", "shards_per_client": 20, "min_size": 0}, 3, "lower either"),
        ({"kind": "pathological", "classes_per_client": 11, "min_size": 0}, 3, "more than the 10 classes"),
        ({"kind": "pathological", "classes_per_client": 1}, 4, "leaves a client with 4 samples"),
        ({"kind": "quantity", "quantity_law": "lognormal", "sigma": -1.0}, 2, "partition.sigma"),
        ({"kind": "dirichlet", "max_tries": 0}, 2, "partition.max_tries must be at least 1"),
        ({"kind": "dirichlet", "scheme": "niid"}, 2, "did you mean 'niid_bench'"),
        ({"kind": "dirichelt"}, 2, "did you mean 'dirichlet'"),
        ({"kind": "file"}, 2, "set data.partition.path"),
        ({}, 0, "num_clients must be at least 1"),
    ],
)
def test_refusals_say_what_to_change(options: dict[str, object], n: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition(np.arange(40) % 10, 10, PartitionConfig(**options), n, 0)  # type: ignore[arg-type]


def test_empty_clients_only_where_allowed() -> None:
    config = PartitionConfig(kind="dirichlet", scheme="per_class", alpha=0.01, min_size=0)
    p = partition(LABELS, 10, config, 100, 0)
    assert min(map(len, p.indices)) == 0
    assert p.tries == 1


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
    with pytest.raises(UserError, match="has 10 clients, num_clients=9"):
        partition(LABELS, 10, config, 9, 0)
    with pytest.raises(UserError, match="another training set than this one of 40000"):
        partition(LABELS[:40_000], 10, config, 10, 0)


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


def test_empty_clients_in_files_need_leave(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    save_partition(Partition.of([[0, 1], []]), path, LABELS)
    with pytest.raises(UserError, match="empty clients"):
        partition(LABELS, 10, PartitionConfig(kind="file", path=str(path)), 2, 0)
    allowed = PartitionConfig(kind="file", path=str(path), min_size=0)
    assert [len(r) for r in partition(LABELS, 10, allowed, 2, 0).indices] == [2, 0]


def test_global_random_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy(), torch.get_rng_state(), random.getstate()  # type: ignore[index,union-attr]  # noqa: NPY002
    for options in LAWS.values():
        partition(LABELS[::25], 10, PartitionConfig(**options), 5, 0)
    after = np.random.get_state()[1], torch.get_rng_state(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_every_law_is_listed() -> None:
    kinds = {name.split("/")[0] for name in SCHEMES}
    assert kinds == {"iid", "dirichlet", "shards", "pathological", "quantity", "file"}
    assert all(law in SCHEMES for law in LAWS if law != "quantity/lognormal")
