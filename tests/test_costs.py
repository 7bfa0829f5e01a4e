"""The estimate is the ledger of the run it stands for, whatever the method; nothing is computed for it."""

import functools
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from rayfl import costs, data, roles
from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.fedavg import FedAvg
from rayfl.costs.blocks import HollowModel
from rayfl.costs.empty import EmptyArithmetic
from rayfl.costs.estimate import count
from rayfl.costs.holdings import holdings
from rayfl.costs.phantom import HollowSource, phantom
from rayfl.data.config import EdgeMap
from rayfl.errors import UserError
from rayfl.experiment import Experiment
from rayfl.fleet import Group
from rayfl.host import Blueprint
from rayfl.ledger import Entry, Ledger
from rayfl.loading import load_experiment
from rayfl.messages import Update

SETTINGS = [
    "rounds=3",
    "algorithm.participation=0.5",
    "data.name=synthetic",
    "data.synthetic={num_train: 90, num_test: 20, num_classes: 3, height: 8, width: 8}",
    "data.num_clients=5",
    "data.partition={kind: dirichlet, alpha: 0.3, min_size: 3}",
    "tracking.enabled=false",
]
OPTIONS: dict[str, dict[str, Any]] = {
    "hierfl": {"cloud_interval": 2},
    "hsfl": {"intervals": (2, 3)},
    "sl": {"reset_optimizer": "keep"},
}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No dataset is prepared."""
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path))


def trained(ledger: Ledger) -> Counter[Entry]:
    """Everything but evaluation, which an estimate doesn't run."""
    return Counter({line: size for line, size in ledger.bytes.items() if line.phase != "evaluation"})


def counted(plan: Blueprint, rounds: int = 3) -> tuple[Ledger, EmptyArithmetic]:
    """The ledger of the same federation without content."""
    kind = "mlp" if plan.train.inputs.dim() == 2 else "batch"  # type: ignore[attr-defined]
    model = HollowModel(functools.partial(tiny.build, kind), plan.dtype == "bfloat16")
    shape = tuple(plan.train.inputs.shape[1:])  # type: ignore[attr-defined]
    source = HollowSource(plan.train.labels, shape, tiny.NUM_CLASSES)  # type: ignore[attr-defined]
    with EmptyArithmetic() as arithmetic:
        return count(phantom(plan, model, source, source), rounds), arithmetic


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_estimate_is_the_ledger(method: str, dtype: str) -> None:
    """Every line of every round, with unequal clients, half of them at a time, and optimiser state."""
    options = {"participation": 0.5, "momentum": 0.9, **OPTIONS.get(method, {})}
    plan = tiny.blueprint(method, num_edges=2, dtype=dtype, **options)
    real = tiny.Federation(plan).run(3).fleet.ledger
    ledger, arithmetic = counted(plan)
    assert trained(ledger) == trained(real)
    assert ledger.total() > 0
    assert not arithmetic.was_read


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_batch_norm_statistics_travel_or_stay(method: str, bn: str) -> None:
    """Buffers of both dtypes are counted where they are averaged and only there."""
    plan = tiny.blueprint(
        method, model="batch", bn=bn, optimizer="adam", num_edges=2, **OPTIONS.get(method, {})
    )
    assert trained(counted(plan)[0]) == trained(tiny.Federation(plan).run(3).fleet.ledger)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "splitfed_v1", "splitfed_v3", "hsfl"])
def test_from_a_config(method: str, prepared: bool) -> None:
    """Also where clients' sizes are known from class counts alone, as for a set that isn't here."""
    config = load_experiment(f"{method}.digits", [*SETTINGS, "model.name=cnn"])
    before = costs.estimate(config)
    assert before.from_counts
    experiment = Experiment(config)
    experiment.run()
    cost = costs.estimate(config) if prepared else before
    assert cost.from_counts is not prepared
    assert trained(cost.ledger) == trained(experiment.ledger)


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


@pytest.mark.parametrize("edge_map", ["blocks", "random", "label_similar"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_sizes_follow_from_class_counts(kind: dict[str, Any], edge_map: EdgeMap) -> None:
    """What an unprepared set's counts give is what the prepared set gives: edges and validation as well."""
    settings = [*SETTINGS, f"data.partition={ {'min_size': 1, **kind} }"]
    config = load_experiment("fedavg.digits", settings).data
    if kind["kind"] == "two_level":
        edge_map = "blocks"  # It brings its own.
    config = replace(config, edge_map=edge_map)
    guessed = holdings(config, 7)
    data.open_dataset(config)
    known = holdings(config, 7)
    assert (guessed.from_counts, known.from_counts) == (True, False)
    assert list(map(len, guessed.client_rows)) == list(map(len, known.client_rows))
    if edge_map != "label_similar" or kind["kind"] not in ("iid", "quantity"):
        # There who holds which labels is drawn row by row, and a note says so.
        assert guessed.client_edges == known.client_edges
    assert len(guessed.validation_rows) == len(known.validation_rows)


@pytest.mark.parametrize(("kind", "num_notes"), [("iid", 2), ("shards", 1)])
def test_edges_that_only_labels_tell(kind: str, num_notes: int) -> None:
    """Said where similar labels are drawn row by row, not where class counts give them."""
    settings = [*SETTINGS, f"data.partition={{kind: {kind}}}", "data.edge_map=label_similar", "rounds=0"]
    notes = costs.estimate(load_experiment("hsfl.digits", settings)).notes
    assert len(notes) == num_notes
    assert notes[0].startswith("sizes from class counts: dataset 'synthetic'")
    assert "label_similar" in notes[-1] or kind == "shards"


def test_what_only_the_dataset_knows_is_refused() -> None:
    """A law by domains can't go by class counts."""
    config = load_experiment("fedavg.digits", [*SETTINGS, "data.partition.kind=domain"]).data
    with pytest.raises(UserError, match="prepare it first: rayfl data prepare synthetic"):
        holdings(config, 0)


class Looking(FedAvg):
    """Opens updates and lets a value decide, on a client and in the round."""

    @dataclass(frozen=True, kw_only=True)
    class Config(FedAvg.Config):
        """Without knobs."""

        name: str = "test_costs:Looking"

    class Client(roles.Client):
        """Sends a list as long as a value says."""

        def extra(self, weights: Any) -> list[float]:
            """3 numbers, or 1."""
            return [0.0] * (3 if weights["block0.0.bias"].sum().item() == 0 else 1)

    def round(self, t: int) -> None:
        clients: Group = self.sample(t)
        updates = clients.train(self.fed.weights(), t)
        self.fed.aggregate(updates)
        largest = max(
            float(update.weights["block0.0.bias"].max()) for update in self.gather(updates).values()
        )
        if largest == 0:
            clients.extra(self.fed.weights())


def test_a_method_that_looks_at_values() -> None:
    """Values read as 0, which is reported."""
    ledger, arithmetic = counted(tiny.blueprint(Looking))
    assert arithmetic.was_read
    assert ledger.total(direction="down") == 2 * ledger.total(direction="up", kind="weights")


def test_a_method_that_opens_results_and_passes_them_on() -> None:
    """To gather is not to look: without a value read there is nothing to report."""

    class Sorting(FedAvg):
        def round(self, t: int) -> None:
            updates = self.gather(self.sample(t).train(self.fed.weights(), t))
            largest = max(updates, key=lambda i: updates[i].mass)
            self.clients.only([largest]).train(self.fed.weights(), t)

    plan = tiny.blueprint(Sorting)
    ledger, arithmetic = counted(plan)
    assert trained(ledger) == trained(tiny.Federation(plan).run(3).fleet.ledger)
    assert not arithmetic.was_read


class Indexing(FedAvg):
    """Chooses rows by value."""

    class Client(roles.Client):
        """Its traffic is as long as the content has it."""

        def update(self) -> Update:
            update = super().update()
            bias = update.weights["block0.0.bias"]
            return replace(update, weights={"block0.0.bias": bias[bias > 0]})


def test_shapes_that_depend_on_values_are_refused() -> None:
    """In one line that says what to do."""
    with pytest.raises(UserError, match=r"can't do without the content .* run it for a few rounds"):
        counted(tiny.blueprint(Indexing))


def test_a_users_method_with_gradients_and_its_own_messages() -> None:
    """Gradients of every parameter are there, of its shape, and what is made of them is counted."""

    class Gradients(FedAvg):
        class Client(roles.Client):
            def update(self) -> Update:
                self.loss(self.host.batch(self.host.blueprint.train, self.rows)).backward()
                signs = {name: p.grad.sign().half() for name, p in self.model.named_parameters()}  # type: ignore[union-attr]
                return replace(super().update(), weights=signs)

    plan = tiny.blueprint(Gradients)
    assert trained(counted(plan)[0]) == trained(tiny.Federation(plan).run(3).fleet.ledger)


def test_nothing_is_left_behind() -> None:
    """The mode ends with the estimate, and torch computes as before; threads are as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        costs.estimate(load_experiment("splitfed_v1.digits", SETTINGS))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


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
