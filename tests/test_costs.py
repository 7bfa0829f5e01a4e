"""The estimate is the ledger of the run it stands for, whatever the method; nothing is computed for it."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lesions
import numpy as np
import pytest
import tiny
import torch

from rayfl import costs, roles
from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.fedavg import FedAvg
from rayfl.costs.blocks import HollowModel
from rayfl.costs.empty import EmptyArithmetic
from rayfl.costs.estimate import count
from rayfl.costs.phantom import HollowSource, phantom
from rayfl.data.info import Outline
from rayfl.errors import UserError
from rayfl.experiment import Experiment
from rayfl.fleet import Group
from rayfl.host import Blueprint
from rayfl.ledger import Entry, Ledger
from rayfl.loading.experiments import load_experiment
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
    # What adaptive depths follow has no content here.
    "fedsga": {"strategy": "random"},
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
    model = HollowModel(plan.model, plan.dtype == "bfloat16")
    shape = tuple(plan.train.inputs.shape[1:])  # type: ignore[attr-defined]
    known = Outline(shape=shape, class_counts=(1,) * tiny.NUM_CLASSES, num_test=0, task=plan.facts.task)
    source = HollowSource(known, getattr(plan.train, "labels", np.zeros(0, dtype=np.int64)))
    hollow = replace(plan, model=model, train=source, test=source)
    with EmptyArithmetic() as arithmetic:
        return count(phantom(hollow), rounds), arithmetic


@pytest.mark.parametrize(
    "dtype", ["float64", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "bfloat16"))]
)
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


def test_nothing_is_drawn_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features by the million take longer than all else; where a lesion lies is six numbers."""
    plans = tiny.blueprint("hsfp", model="group"), lesions.plan()
    drawn: list[int] = []
    randn = torch.randn

    def counting(*size: Any, **options: Any) -> torch.Tensor:
        found = randn(*size, **options)
        drawn.append(found.numel())
        return found

    monkeypatch.setattr(torch, "randn", counting)
    for plan in plans:
        counted(plan)
    assert max(drawn) <= 6 * lesions.SMALL["syn_per_class"]
    for plan in plans:
        tiny.run(plan, 1)
    assert max(drawn) > 100


@pytest.mark.parametrize("covariance", ["mu_only", "low_rank", "full"])
def test_what_is_sent_of_a_class_may_depend_on_its_samples(covariance: str) -> None:
    """Directions are at most a quarter as many as samples, which labels tell."""
    plan = tiny.blueprint("hsfp", num_edges=2, participation=0.5, covariance=covariance, pooling="mixture")
    assert trained(counted(plan)[0]) == trained(tiny.Federation(plan).run(3).fleet.ledger)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {}),
        ("splitfed_v1", {"cut_layer": 1}),
        ("mergesfl", {"cut_layer": 1}),
        ("hsfl", {}),
        ("hsfp", {"pooling": "mixture"}),
        ("hsfp", {"covariance": "mu_only"}),
        ("hsfp", {"seg_mode": "repo_image_label", "covariance": "low_rank", "rank": 1}),
    ],
    ids=str,
)
def test_masks(method: str, options: dict[str, Any]) -> None:
    """Their bytes, and what moments they give, where clients have all that a mask can hold."""
    plan = lesions.plan(method, participation=0.7, **options)
    real = tiny.Federation(plan).run(3).fleet.ledger
    ledger, arithmetic = counted(plan)
    assert trained(ledger) == trained(real)
    assert not arithmetic.was_read


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.slow
@pytest.mark.parametrize("method", ALGORITHMS)
def test_batch_norm_statistics_travel_or_stay(method: str, bn: str) -> None:
    """Buffers of both dtypes are counted where they are averaged and only there."""
    plan = tiny.blueprint(
        method, model="batch", bn=bn, optimizer="adam", num_edges=2, **OPTIONS.get(method, {})
    )
    assert trained(counted(plan)[0]) == trained(tiny.Federation(plan).run(3).fleet.ledger)


@pytest.mark.parametrize("cut_layer", tiny.PAIR_CUTS)
@pytest.mark.parametrize("method", ["splitfed_v1", "mergesfl"])
def test_pairs_of_tensors_cross_a_cut(method: str, cut_layer: int) -> None:
    """Both of a pair are counted, each way."""
    plan = tiny.blueprint(method, model="pair", cut_layer=cut_layer)
    assert trained(counted(plan)[0]) == trained(tiny.Federation(plan).run(3).fleet.ledger)


@pytest.mark.parametrize("prepared", [pytest.param(False, marks=pytest.mark.slow), True])
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
