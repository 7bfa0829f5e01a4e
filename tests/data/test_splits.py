"""Who trains and is scored on what."""

import hashlib
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig, load, save_partition
from rayfl.data.client_tests import client_tests
from rayfl.errors import UserError

SYNTHETIC = SyntheticConfig(num_train=1000, num_test=200, height=4, width=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


def config(root: str, **options: object) -> DataConfig:
    return DataConfig(name="synthetic", root=root, synthetic=SYNTHETIC, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "quantity"])
@pytest.mark.parametrize("val_fraction", [0.0, 0.1, 0.333])
def test_rows_are_trained_on_or_held_out(root: str, kind: str, val_fraction: float) -> None:
    partition = PartitionConfig(kind=kind, alpha=0.5)  # type: ignore[arg-type]
    for seed in range(3):
        fd = load(config(root, val_fraction=val_fraction, partition=partition), seed)
        assert len(fd.validation_indices) == round(val_fraction * 1000)
        everything = np.concatenate([*fd.client_indices, fd.validation_indices])
        assert np.array_equal(np.sort(everything), np.arange(1000))
        counts = np.bincount(fd.train.labels[fd.validation_indices], minlength=10)
        assert counts.max() - counts.min() <= 1
        assert fd.partition.indices is fd.client_indices


def test_seeds_change_rows_and_nothing_else_does(root: str) -> None:
    c = config(root, partition=PartitionConfig(kind="dirichlet"))
    a, b, other = load(c, 0), load(c, 0), load(c, 1)
    assert a.partition.hash == b.partition.hash
    assert np.array_equal(a.validation_indices, b.validation_indices)
    for x, y in zip(a.client_test_indices, b.client_test_indices, strict=True):
        assert np.array_equal(x, y)
    assert a.partition.hash != other.partition.hash
    assert not np.array_equal(a.validation_indices, other.validation_indices)
    assert a.train is other.train


def test_validation_does_not_depend_on_the_partition(root: str) -> None:
    a = load(config(root), 0)
    b = load(config(root, num_clients=3, partition=PartitionConfig(kind="shards")), 0)
    assert np.array_equal(a.validation_indices, b.validation_indices)


def test_client_tests_are_those_of_every_process_and_numpy() -> None:
    """Rows of sets without domains, pinned to the bit."""
    counts = np.array([[30, 0, 5], [10, 7, 1], [0, 0, 0], [3, 3, 3], [0, 60, 0]])
    digest = hashlib.sha256()
    for rows in client_tests(np.arange(500) * 7 % 11 % 3, counts, 7):
        digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "6b3d84de60850c39"


def test_edges_serve_contiguous_blocks(root: str) -> None:
    assert load(config(root, num_clients=5, num_edges=2), 0).client_edges == (0, 0, 0, 1, 1)
    assert load(config(root, num_clients=4, num_edges=4), 0).client_edges == (0, 1, 2, 3)
    assert load(config(root, num_clients=2, num_edges=4), 0).client_edges == (0, 2)


def test_val_fraction_is_checked(root: str) -> None:
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="val_fraction"):
            load(config(root, val_fraction=fraction), 0)


def test_client_tests_by_hand() -> None:
    """Class 0 (four rows) is shared 3:1; class 1 (two rows) goes whole to client 1; class 2 is nobody's."""
    labels = np.array([0, 1, 0, 2, 0, 1, 0])
    mine = client_tests(labels, np.array([[30, 0, 0], [10, 7, 0]]), 0)
    assert [np.bincount(labels[r], minlength=3).tolist() for r in mine] == [[3, 0, 0], [1, 2, 0]]
    rows = np.concatenate(mine)
    assert len(np.unique(rows)) == len(rows) == 6


def test_client_tests_when_clients_outnumber_rows() -> None:
    """Everyone who trains is scored on something it knows; who holds nothing isn't scored."""
    labels = np.array([0, 1])
    counts = np.array([[1, 0]] * 5 + [[0, 2]] * 3 + [[0, 0]])
    mine = client_tests(labels, counts, 0)
    assert [labels[r].tolist() for r in mine] == [[0]] * 5 + [[1]] * 3 + [[]]
    assert mine[-1].dtype == np.int64


def test_client_tests_keep_the_mix(root: str) -> None:
    fd = load(config(root, num_clients=5, partition=PartitionConfig(kind="dirichlet", alpha=0.3)), 0)
    rows = np.concatenate(fd.client_test_indices)
    assert np.array_equal(np.sort(rows), np.arange(200))
    train = np.stack([np.bincount(fd.train.labels[r], minlength=10) for r in fd.client_indices])
    test = np.stack([np.bincount(fd.test.labels[r], minlength=10) for r in fd.client_test_indices])
    assert np.abs(test - train * 20 / train.sum(axis=0)).max() < 1


def test_an_exported_partition_is_the_same_again(root: str, tmp_path: Path) -> None:
    fd = load(config(root, partition=PartitionConfig(kind="dirichlet")), 3)
    save_partition(fd.partition, tmp_path / "p.npz", fd.train.labels)
    stored = config(root, partition=PartitionConfig(kind="file", path=str(tmp_path / "p.npz")))
    assert load(stored, 3).partition.hash == fd.partition.hash
    elsewhere = load(stored, 4)
    rows = np.concatenate(elsewhere.client_indices)
    assert not np.isin(rows, elsewhere.validation_indices).any()
    assert all(np.isin(a, b).all() for a, b in zip(elsewhere.client_indices, fd.client_indices, strict=True))


def test_it_pickles_small_and_leaves_global_randomness_alone(root: str) -> None:
    states = np.random.get_state()[1].copy(), torch.get_rng_state(), random.getstate()  # type: ignore[index,union-attr]  # noqa: NPY002
    fd = load(config(root), 0)
    assert np.array_equal(states[0], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(states[1], torch.get_rng_state())
    assert states[2] == random.getstate()
    again = pickle.loads(pickle.dumps(fd))
    assert again.partition.hash == fd.partition.hash
    assert again.train is pickle.loads(pickle.dumps(fd.train))


DOMAINS = SyntheticConfig(
    num_train=1200, num_test=400, height=4, width=4, num_classes=4, num_domains=3, domain_shift=0.1
)


def in_domains(root: str, **options: object) -> DataConfig:
    options = {"num_clients": 9, "num_edges": 3, "partition": PartitionConfig(kind="domain"), **options}
    return DataConfig(name="synthetic", root=root, synthetic=DOMAINS, **options)  # type: ignore[arg-type]


def test_clients_of_a_domain_are_scored_on_it_in_their_own_class_mix(root: str) -> None:
    """Each (domain, class) of the test set is shared out like that of the training set, to within a row."""
    skewed = PartitionConfig(kind="domain", within="dirichlet", alpha=0.3)
    fd = load(in_domains(root, partition=skewed), 0)
    assert fd.train.domains is not None
    assert fd.test.domains is not None
    for d in range(3):
        for k in range(4):
            train, test = (
                np.array([((s.domains[r] == d) & (s.labels[r] == k)).sum() for r in rows])
                for s, rows in ((fd.train, fd.client_indices), (fd.test, fd.client_test_indices))
            )
            there = ((fd.test.domains == d) & (fd.test.labels == k)).sum()
            assert test.sum() == there
            assert np.abs(test - train / train.sum() * there).max() < 1
    domains = [set(fd.train.domains[r]) for r in fd.client_indices]
    assert all(len(d) == 1 for d in domains)
    assert [set(fd.test.domains[r]) for r in fd.client_test_indices] == domains


def test_statistics_know_domains_and_edges(root: str) -> None:
    fd = load(in_domains(root, edge_map="domain", num_clients=7), 0)
    s = fd.statistics()
    assert s.domain_counts is not None
    assert s.domain_counts.shape == (7, 3)
    assert fd.client_edges == fd.partition.edges == tuple(sorted(fd.client_edges))
    assert sorted(np.bincount(fd.client_edges)) == [2, 2, 3]
    assert s.edge_counts is not None
    assert s.edge_counts.shape == (3, 4)
    assert s.edge_line().startswith("3 edges")


def test_the_edge_map_is_fixed_by_the_seed_and_part_of_the_fingerprint(root: str) -> None:
    maps = {}
    for kind in ("blocks", "random", "label_similar", "label_diverse", "domain"):
        fd = load(in_domains(root, edge_map=kind, partition=PartitionConfig(kind="dirichlet")), 0)
        again = load(in_domains(root, edge_map=kind, partition=PartitionConfig(kind="dirichlet")), 0)
        assert fd.client_edges == again.client_edges
        assert (fd.partition.edges is None) == (kind == "blocks")
        maps[fd.partition.hash] = fd.client_indices
    assert len(maps) == 5
    rows = [np.concatenate(indices).tolist() for indices in maps.values()]
    assert all(some == rows[0] for some in rows)


def test_a_file_brings_its_edge_map(root: str, tmp_path: Path) -> None:
    fd = load(in_domains(root, edge_map="random"), 3)
    save_partition(fd.partition, tmp_path / "p.npz", fd.train.labels)
    stored = PartitionConfig(kind="file", path=str(tmp_path / "p.npz"))
    again = load(in_domains(root, partition=stored), 3)
    assert again.client_edges == fd.client_edges != tuple(i // 3 for i in range(9))
    assert again.partition.hash == fd.partition.hash
    assert load(in_domains(root, partition=stored), 4).client_edges == fd.client_edges
    with pytest.raises(UserError, match=r"kind=file brings its own edge map, got data\.edge_map=random"):
        load(in_domains(root, partition=stored, edge_map="random"), 3)


def test_two_level_brings_its_edge_map(root: str) -> None:
    law = PartitionConfig(kind="two_level", alpha_edge=0.3, alpha=100.0)
    fd = load(in_domains(root, partition=law, num_edges=2), 0)
    assert fd.client_edges == fd.partition.edges == (0,) * 5 + (1,) * 4
    with pytest.raises(UserError, match=r"two_level brings its own .*domain: set data\.edge_map=blocks"):
        load(in_domains(root, partition=law, edge_map="domain"), 0)


def test_domains_held_out_or_not_stay_whole(root: str) -> None:
    natural = PartitionConfig(kind="natural", natural_by="domain")
    fd = load(in_domains(root, partition=natural, num_clients=3, val_fraction=0.2), 0)
    assert fd.train.domains is not None
    assert [set(fd.train.domains[r]) for r in fd.client_indices] == [{0}, {1}, {2}]
    assert sum(map(len, fd.client_indices)) == 960
    with pytest.raises(UserError, match="samples have a domain"):
        load(config(root, partition=natural, num_clients=3), 0)
