"""Partitions: disjoint, complete, bounded in time, the same everywhere, refused where they can't be had."""

import hashlib
import logging
import math
import random
from itertools import product

import numpy as np
import pytest
import torch

from rayfl.data import SCHEMES, Partition, PartitionConfig, knobs, named, partition
from rayfl.errors import UserError

LABELS = np.repeat(np.arange(10), 5000)
LAWS: dict[str, dict[str, object]] = {
    "iid": {"kind": "iid"},
    **{
        f"dirichlet/{s}": {"kind": "dirichlet", "scheme": s}
        for s in ("niid_bench", "per_class", "per_client", "hsu")
    },
    "shards": {"kind": "shards"},
    "pathological": {"kind": "pathological"},
    "dominant": {"kind": "dominant", "dominant_ratio": 0.6},
    "quantity": {"kind": "quantity"},
    "quantity/lognormal": {"kind": "quantity", "quantity_law": "lognormal"},
    "domain/iid": {"kind": "domain", "within": "iid"},
    **{f"domain/{s}": {"kind": "domain", "within": "dirichlet", "scheme": s} for s in ("niid_bench", "hsu")},
    "natural/group": {"kind": "natural"},
    "natural/domain": {"kind": "natural", "natural_by": "domain"},
    **{
        f"two_level/{s}": {"kind": "two_level", "scheme": s}
        for s in ("niid_bench", "per_class", "per_client", "hsu")
    },
}


def uneven(total: int, num_classes: int) -> np.ndarray:
    """Labels in random order whose classes differ in size, the last one absent."""
    return np.random.default_rng(total).binomial(num_classes - 2, 0.4, total)


def domains_of(labels: np.ndarray) -> np.ndarray:
    """Domains 0, 1 and 3 of uneven size: 2/7, 4/7 and 1/7 of the samples."""
    return np.array([0, 1, 1, 3, 0, 1, 1])[np.arange(len(labels)) % 7]


def groups_of(labels: np.ndarray) -> np.ndarray:
    """Groups of 1 to 29 samples, with gaps in their numbers."""
    return 3 * np.repeat(np.arange(len(labels)), 1 + 7 * np.arange(len(labels)) % 29)[: len(labels)]


def divided(labels: np.ndarray, num_classes: int, config: PartitionConfig, n: int, seed: int) -> Partition:
    return partition(
        labels, num_classes, config, n, seed,
        domains=domains_of(labels), groups=groups_of(labels), num_edges=min(n, 3),
    )  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_every_sample_goes_to_exactly_one_client_and_nobody_gets_too_few(law: str) -> None:
    for n, alpha, seed, labels in product(
        (1, 3, 40), (0.1, 100.0), range(2), (LABELS[::25], uneven(1777, 7))
    ):
        num_classes = 10 if len(labels) == 2000 else 7
        config = PartitionConfig(**LAWS[law], alpha=alpha, min_size=5, on_small="repair", max_tries=5)  # type: ignore[arg-type]
        if law == "pathological" and num_classes == 7:
            continue  # a client may be left with the rare classes only, which is refused
        if (law.startswith("domain") and n < 3) or (law == "natural/domain" and n > 3):
            continue
        p = divided(labels, num_classes, config, n, seed)
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
        assert divided(labels, num_classes, config, n, seed).hash == p.hash
        if n > (3 if "domain" in law else 1):  # one client per domain leaves nothing to chance
            assert divided(labels, num_classes, config, n, seed + 100).hash != p.hash


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
    "dominant": "4d9ac5ad75a63676",
    "domain/iid": "c78c3946c709a22a",
    "domain/niid_bench": "73713038dc7cf45a",
    "domain/hsu": "e3cff3cc7e79df07",
    "natural/group": "f44705baedc56923",
    "natural/domain": "a91bb9f235ad9ddd",
    "two_level/niid_bench": "b440317df465e1b1",
    "two_level/per_class": "18ead3d4352e0356",
    "two_level/per_client": "dbb265723bf834ff",
    "two_level/hsu": "38dcf80074711f21",
}


@pytest.mark.parametrize("law", LAWS)
def test_hashes_are_those_of_every_process_and_numpy(law: str) -> None:
    config = PartitionConfig(**LAWS[law], alpha=0.3)  # type: ignore[arg-type]
    p = divided(LABELS[::25], 10, config, 3 if law == "natural/domain" else 10, 7)
    assert p.hash == GOLDEN[law]


def test_hash_is_sha256_of_lengths_rows_and_edges() -> None:
    text = b"".join(v.to_bytes(8, "little") for v in (2, 1, 4, 1, 3))
    assert Partition.of([[4, 1], [3]]).hash == hashlib.sha256(text).hexdigest()[:16]
    assert Partition.of([[4], [1, 3]]).hash != Partition.of([[4, 1], [3]]).hash
    text += b"edges" + b"".join(v.to_bytes(8, "little") for v in (1, 0))
    assert Partition.of([[4, 1], [3]], edges=[1, 0]).hash == hashlib.sha256(text).hexdigest()[:16]


def test_statistics_by_hand() -> None:
    s = Partition.of([[0, 1, 2], [3], []]).statistics([0, 0, 1, 1], 2)
    assert s.counts.tolist() == [[2, 1], [0, 1], [0, 0]]
    assert s.size_cv == pytest.approx(np.std([3, 1, 0]) / (4 / 3))
    assert s.classes_held == 1.5
    assert s.top_share == pytest.approx((2 / 3 + 1) / 2)
    assert s.total_variation == pytest.approx((1 / 6 + 1 / 2) / 2)
    assert s.line().startswith("3 clients, 0 to 3 samples")
    assert s.domain_counts is s.edge_counts is None
    assert s.edge_line() == ""


def test_statistics_of_domains_and_edges_by_hand() -> None:
    """Edge 1 has clients 0 and 2: two samples of class 0, one of class 1. Edge 0 has client 1: class 1."""
    p = Partition.of([[0, 1], [3], [2]], edges=[1, 0, 1])
    s = p.statistics([0, 0, 1, 1], 2, domains=[0, 2, 2, 2])
    assert s.domain_counts is not None
    assert s.domain_counts.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert s.edge_counts is not None
    assert s.edge_counts.tolist() == [[0, 1], [2, 1]]
    assert s.edge_variation == pytest.approx((1 / 2 + 1 / 6) / 2)
    assert s.within_edge_variation == pytest.approx((1 / 3 + 0 + 2 / 3) / 3)
    assert s.line().endswith("1.3 domains each")
    assert s.edge_line().startswith("2 edges, 1 to 3 samples, TV of clients to their edge 0.33")


@pytest.mark.parametrize(("n", "alpha", "scheme"), [(100, 0.05, "niid_bench"), (1000, 0.01, "per_class")])
def test_hopeless_draws_end_with_the_knobs_named(n: int, alpha: float, scheme: str) -> None:
    config = PartitionConfig(kind="dirichlet", scheme=scheme, alpha=alpha, max_tries=30)  # type: ignore[arg-type]
    with pytest.raises(UserError) as e:
        partition(LABELS, 10, config, n, 0)
    message = str(e.value)
    for part in (
        f"each of {n} clients",
        f"dirichlet {scheme}, alpha {alpha:g}",
        "data.partition.min_size=10",
        "no draw out of 30",
        "set data.partition.on_small=repair",
        "lower data.partition.min_size or data.num_clients",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_impossible_alphas_are_refused(alpha: float, kind: str) -> None:
    with pytest.raises(UserError, match=r"partition\.alpha must be a finite number above 0"):
        partition(LABELS, 10, PartitionConfig(kind=kind, alpha=alpha), 10, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "n", "message"),
    [
        ({}, 41, "data.num_clients=41 is more than the 40 training samples"),
        ({}, 5, "data.num_clients=5 with data.partition.min_size=10 need 50 training samples, there are 40"),
        ({"kind": "dirichlet", "on_small": "repair"}, 5, "need 50 training samples"),
        ({"kind": "shards", "shards_per_client": 20, "min_size": 0}, 3, "data.partition.shards_per_client"),
        ({"kind": "pathological", "classes_per_client": 11, "min_size": 0}, 3, "more than the 10 classes"),
        ({"kind": "pathological", "classes_per_client": 1}, 4, "best smallest client: 4"),
        ({"kind": "quantity", "quantity_law": "lognormal", "sigma": -1.0}, 2, "data.partition.sigma"),
        ({"kind": "dominant", "dominant_ratio": 1.5}, 2, r"dominant_ratio must lie in \[0, 1\], got 1.5"),
        ({"kind": "dirichlet", "max_tries": 0}, 2, "data.partition.max_tries must be at least 1"),
        ({"kind": "dirichlet", "scheme": "niid"}, 2, "did you mean 'niid_bench'"),
        ({"kind": "dirichelt"}, 2, "did you mean 'dirichlet'"),
        ({"kind": "domain", "within": "dir"}, 2, "unknown data.partition.within 'dir'"),
        ({"kind": "file"}, 2, "set data.partition.path"),
        ({}, 0, "data.num_clients must be at least 1"),
        ({"kind": "two_level", "alpha_edge": 0.0}, 4, "data.partition.alpha_edge must be a finite number"),
        ({"kind": "two_level"}, 2, "a client for each edge server, got data.num_edges=3"),
        ({"kind": "domain"}, 1, "each of the 2 domains, got data.num_clients=1: raise it to 2 or more"),
        ({"kind": "domain", "min_size": 6}, 5, "domain 1 has 10 samples for 2 clients"),
        ({"kind": "natural", "natural_by": "domain"}, 3, "divides no domain, and there are 2 for "),
        ({"kind": "natural", "natural_by": "domain", "min_size": 11}, 2, "natural domain .*client: 10"),
        ({"kind": "natural"}, 2, "have a group, this one's have none: .*kind=natural with natural_by=domain"),
    ],
)
def test_refusals_say_what_to_change(options: dict[str, object], n: int, message: str) -> None:
    config = PartitionConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message) as e:
        partition(np.arange(40) % 10, 10, config, n, 0, domains=np.arange(40) % 4 // 3, num_edges=3)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("options", [{"kind": "domain"}, {"kind": "natural", "natural_by": "domain"}])
def test_sets_without_domains_are_refused_with_what_works(options: dict[str, object]) -> None:
    config = PartitionConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"samples have a domain.*data\.synthetic\.num_domains.*kind=iid, dir"
    ):
        partition(np.arange(40) % 10, 10, config, 2, 0)


def test_labels_that_are_all_the_same_are_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    """A segmentation set has no labels to divide by."""
    with caplog.at_level(logging.WARNING, "rayfl.data"):
        partition(np.zeros(100), 2, PartitionConfig(kind="quantity"), 2, 0)
        assert not caplog.records
        partition(np.zeros(100), 2, PartitionConfig(kind="dirichlet"), 2, 0)
    assert "all labels are 0: data.partition.kind=dirichlet divides by label" in caplog.text


def test_empty_clients_only_where_allowed() -> None:
    config = PartitionConfig(kind="dirichlet", scheme="per_class", alpha=0.01, min_size=0)
    p = partition(LABELS, 10, config, 100, 0)
    assert min(map(len, p.indices)) == 0
    assert p.tries == 1


def test_global_random_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy(), torch.get_rng_state(), random.getstate()  # type: ignore[index,union-attr]  # noqa: NPY002
    for law, options in LAWS.items():
        divided(LABELS[::25], 10, PartitionConfig(**options), 3 if law == "natural/domain" else 5, 0)  # type: ignore[arg-type]
    after = np.random.get_state()[1], torch.get_rng_state(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_every_law_is_listed_and_named() -> None:
    kinds = {str(law["kind"]) for law in LAWS.values()}
    assert {name.split("/")[0] for name in SCHEMES} == {*kinds, "file"}
    assert all(law in SCHEMES for law in LAWS if law.startswith("dirichlet/"))
    law = PartitionConfig(kind="domain", within="dirichlet", alpha=0.1)
    assert knobs(law) == {"within": "dirichlet", "scheme": "niid_bench", "alpha": 0.1}
    assert named(law) == "domain dirichlet niid_bench, alpha 0.1"
    assert named(PartitionConfig()) == "iid"
    assert named(PartitionConfig(kind="quantity")) == "quantity dirichlet, alpha 0.5"
    assert named(PartitionConfig(kind="quantity", quantity_law="lognormal")) == "quantity lognormal, sigma 1"
