"""What is estimated without a round: who holds how much, sides of the cut, memory, other accounting."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfl import costs, data
from rayfl.costs.plan import splits
from rayfl.data.config import DataConfig, EdgeMap
from rayfl.errors import UserError
from rayfl.loading.experiments import load_experiment

SETTINGS = [
    "data.name=synthetic",
    "data.synthetic={num_train: 90, num_test: 20, num_classes: 3, height: 8, width: 8}",
    "data.num_clients=5",
    "data.partition={kind: dirichlet, alpha: 0.3, min_size: 3}",
]


def divided(config: DataConfig) -> tuple[data.FederatedData, bool]:
    """Who holds what, and whether that is known from class counts alone."""
    train, test, from_counts = splits(config)
    return data.federate(config, 7, train, test), from_counts


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No dataset is prepared."""
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path))


KINDS = [
    {"kind": "iid"},
    {"kind": "dirichlet", "scheme": "niid_bench", "alpha": 0.3},
    {"kind": "dirichlet", "scheme": "per_class", "alpha": 0.3, "on_small": "repair"},
    {"kind": "dirichlet", "scheme": "per_client"},
    {"kind": "shards"},
    {"kind": "pathological"},
    {"kind": "quantity"},
    {"kind": "two_level"},
]


@pytest.mark.parametrize("edge_map", ["blocks", "random", "label_similar", "label_diverse"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_sizes_follow_from_class_counts(kind: dict[str, Any], edge_map: EdgeMap) -> None:
    """What an unprepared set's counts give is what the prepared set gives: edges and validation as well."""
    settings = [*SETTINGS, f"data.partition={ {'min_size': 1, **kind} }"]
    config = load_experiment("fedavg.digits", settings).data
    if kind["kind"] == "two_level":
        edge_map = "blocks"  # It brings its own.
    config = replace(config, edge_map=edge_map)
    guessed, guessing = divided(config)
    data.open_dataset(config)
    known, still_guessing = divided(config)
    assert (guessing, still_guessing) == (True, False)
    assert list(map(len, guessed.client_indices)) == list(map(len, known.client_indices))
    if edge_map not in ("label_similar", "label_diverse") or kind["kind"] not in ("iid", "quantity"):
        # There who holds which labels is drawn row by row, and a note says so.
        assert guessed.client_edges == known.client_edges
    assert len(guessed.validation_indices) == len(known.validation_indices)


@pytest.mark.parametrize("edge_map", ["label_similar", "label_diverse"])
@pytest.mark.parametrize(("kind", "num_notes"), [("iid", 2), ("shards", 1)])
def test_edges_that_only_labels_tell(kind: str, num_notes: int, edge_map: str) -> None:
    """Said where similar labels are drawn row by row, not where class counts give them."""
    settings = [*SETTINGS, f"data.partition={{kind: {kind}}}", f"data.edge_map={edge_map}", "rounds=0"]
    notes = costs.estimate(load_experiment("hsfl.digits", settings)).notes
    assert len(notes) == num_notes
    assert notes[0].startswith("sizes from class counts: dataset 'synthetic'")
    assert edge_map in notes[-1] or kind == "shards"


def test_what_only_the_dataset_knows_is_refused() -> None:
    """A law by domains can't go by class counts."""
    config = load_experiment("fedavg.digits", [*SETTINGS, "data.partition.kind=domain"]).data
    with pytest.raises(UserError, match="prepare it first: rayfl data prepare synthetic"):
        splits(config)


def test_sides_and_memory_by_hand() -> None:
    """digits' mlp 64-200-200-10 cut after fc1, batches of 16, momentum, in float32.

    Client: 64*200+200 parameters, 2*64*200 FLOPs, 200 numbers out. Memory: weights, gradients and momentum
    of 13,000 parameters; per sample 200 outputs of the block and their gradients.
    """
    settings = ["algorithm.cut_layer=fc1", "algorithm.batch_size=16", "algorithm.momentum=0.9", "rounds=0"]
    cost = costs.estimate(load_experiment("splitfed_v1.digits", settings))
    client, main = cost.sides
    assert (client.role, client.blocks, client.params, client.buffers) == ("client", "fc1", 13_000, 0)
    assert (client.flops, client.macs) == (25_600, 12_800)
    assert (client.activation_elements, client.activation_bytes, client.state_bytes) == (200, 800, 52_000)
    assert (main.blocks, main.params) == ("fc2..head", 200 * 200 + 200 + 200 * 10 + 10)
    assert main.activation_elements == 0
    memory = cost.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (52_000, 52_000, 52_000)
    assert memory.activations == 2 * 16 * 200 * 4
    assert memory.total == 3 * 52_000 + 25_600


@pytest.mark.parametrize(("optimizer", "times"), [("sgd", 0), ("adam", 2)])
def test_optimiser_state(optimizer: str, times: int) -> None:
    """Plain SGD keeps nothing, Adam two moments and a 4-byte counter per tensor."""
    settings = [f"algorithm.optimizer={optimizer}", "algorithm.momentum=0", "rounds=0", "train.dtype=float64"]
    memory = costs.estimate(load_experiment("fedavg.digits", settings)).memory
    assert memory.optimizer == times * memory.weights + (6 * 4 if times else 0)


def test_two_runs_of_blocks_and_bfloat16() -> None:
    """SplitFed U's client holds both ends; under autocast activations are sent in two bytes each."""
    settings = ["algorithm.cut_layer=fc1", "train.dtype=bfloat16", "rounds=0"]
    client, main = costs.estimate(load_experiment("splitfed_u.digits", settings)).sides
    assert (client.blocks, main.blocks) == ("fc1, head", "fc2")
    assert (client.activation_elements, client.activation_bytes) == (200, 400)
    assert (main.activation_elements, main.activation_bytes) == (200, 400)


HSFP = [
    "rounds=200",
    "model={name: resnet50, norm: batch, stem: imagenet}",
    "data.name=synthetic",
    "data.synthetic={num_train: 50000, num_test: 10, num_classes: 10, channels: 3, height: 32, width: 32}",
    "data.num_clients=200",
    "data.num_edges=10",
    "algorithm.participation=0.1",
]


@pytest.mark.parametrize(("method", "gib"), [("fedavg", "3,865.35"), ("hierfl", "4,392.44")])
def test_hsfp_table(method: str, gib: str) -> None:
    """The printed digits of the paper's communication table, from a state dict of 94,326,992 bytes."""
    cost = costs.estimate(load_experiment(f"{method}.digits", HSFP), "paper_hsfp")
    (client,) = cost.sides
    assert (client.params + client.buffers, client.state_bytes) == (23_581_695, 94_326_992)
    assert f"{cost.ledger.total() / 2**30:,.2f}" == gib


def test_hsfp_accounting_is_for_two_methods() -> None:
    with pytest.raises(UserError, match=r"fedavg and hierfl only, got 'sl'"):
        costs.estimate(load_experiment("sl.digits"), "paper_hsfp")
    with pytest.raises(UserError, match=r"unknown accounting 'paper_hspf': did you mean 'paper_hsfp'"):
        costs.estimate(load_experiment("sl.digits"), "paper_hspf")


def test_supervised_contrastive_views_double_the_batch() -> None:
    """Two views of each sample cross the cut, with two labels."""
    once = costs.estimate(load_experiment("splitfed_v1.digits", ["rounds=1"])).traffic
    twice = costs.estimate(load_experiment("splitfed_v1.digits", ["rounds=1", "data.augment=supcon"])).traffic
    line = ("client-main", "up", "label")
    assert twice[line] == 2 * once[line] > 0
