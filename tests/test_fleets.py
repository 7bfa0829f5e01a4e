"""Wherever parties live and whenever a run stops, every method gives the same bits and the same bytes."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import identical

from rayfl.algorithms import ALGORITHMS, Algorithm
from rayfl.config import ExperimentConfig, TrainConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.errors import RunFailed
from rayfl.experiment import Experiment
from rayfl.fleet_config import FleetConfig
from rayfl.messages import Gradient
from rayfl.models import ModelConfig
from rayfl.roles import SplitClient

METHODS = [
    name
    if name in ("fedavg", "splitfed_v1", "hsfl", "fedsga")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in ALGORITHMS
]
LAYOUTS: dict[str, dict[str, Any]] = {
    "2 colocated": {"client_actors": 2, "placement": "colocated"},
    "2 separate": {"client_actors": 2, "placement": "separate"},
    "4 colocated": {"client_actors": 4, "placement": "colocated"},
    "4 separate": {"client_actors": 4, "placement": "separate"},
    "4 separate, 2 shards": {"client_actors": 4, "placement": "separate", "main_shards": 2},
    "one each": {"clients_per_actor": 1, "placement": "colocated"},
    "one each, separate": {"clients_per_actor": 1, "placement": "separate"},
}
HARD: dict[str, Any] = {"participation": 0.7, "momentum": 0.9, "reset_optimizer": "keep"}
SIX = (7, 3, 10, 5, 4, 6)


def plan_of(method: str, **options: Any) -> tiny.Blueprint:
    """Six clients under three edges, BatchNorm, partial rounds, momentum kept; intervals that bite."""
    if method == "hsfl":
        options["intervals"] = (2, 3)
    return tiny.blueprint(method, SIX, "batch", num_edges=3, **{**HARD, **options})


def scores(federation: tiny.Federation) -> list[Any]:
    """Predictions and losses of the global model by slice and of the personal ones by client."""
    algorithm, fleet = federation.algorithm, federation.fleet
    with fleet.phase("evaluation"):
        found = [fleet.gather(algorithm.clients.score(*algorithm.personal_model(federation.t)))]
        if not algorithm.is_personal(algorithm.config):
            evaluators, versions = fleet.group("evaluator"), algorithm.versions(federation.t)
            found += [fleet.gather(evaluators.score(*parts)) for _, parts in versions]
        found += [fleet.gather(parcel) for parcel in algorithm.beside(federation.t).values()]
        fleet.settle()
    return [
        [(i, part.predictions.tolist(), part.loss) for i, pair in sorted(group.items()) for part in pair]
        for group in found
    ]


REFERENCES: dict[tuple[str, str], tuple[Any, ...]] = {}


def reference(method: str, bn: str) -> tuple[Any, ...]:
    """Weights, ledger and scores in one process."""
    if (method, bn) not in REFERENCES:
        federation = tiny.Federation(plan_of(method, bn=bn)).run(2)
        found = federation.weights(), dict(+federation.fleet.ledger.bytes), scores(federation)
        REFERENCES[method, bn] = found
    return REFERENCES[method, bn]


@pytest.mark.parametrize(
    ("layout", "bn"),
    [
        ("4 separate, 2 shards", "average"),
        pytest.param("2 separate", "local", marks=pytest.mark.slow),
        *(
            pytest.param(name, "average", marks=pytest.mark.slow)
            for name in LAYOUTS
            if name != "4 separate, 2 shards"
        ),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_sealed_is_local(method: str, layout: str, bn: str) -> None:
    """Hosts that only exchange serialised copies give the same weights, bytes and scores."""
    plan = plan_of(method, bn=bn)
    federation = tiny.Federation(plan, tiny.sealed(plan, **LAYOUTS[layout])).run(2)
    weights, traffic, scored = reference(method, bn)
    assert identical(federation.weights(), weights)
    assert +federation.fleet.ledger.bytes == traffic
    assert scores(federation) == scored


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2 colocated", "4 separate, 2 shards", "one each"])
@pytest.mark.parametrize("method", ["fedavg", "splitfed_v1", "hierfl", "hsfl"])
def test_more_clients_than_blocks(method: str, layout: str) -> None:
    """Blocks of one and two clients, pooled where a host holds them whole: still the same bits."""
    plan = tiny.blueprint(method, tuple(2 + i % 3 for i in range(24)), num_edges=4, participation=0.8)
    federation = tiny.Federation(plan, tiny.sealed(plan, **LAYOUTS[layout])).run(1)
    local = tiny.Federation(plan).run(1)
    assert identical(federation.weights(), local.weights())
    assert +federation.fleet.ledger.bytes == +local.fleet.ledger.bytes


class Scribbler(ALGORITHMS["splitfed_v1"]):  # type: ignore[misc]
    """Writes to the gradient it receives."""

    class Client(SplitClient):
        """Scales the answer in place."""

        def backward(self, gradient: Gradient) -> None:
            gradient.values.mul_(2.0)
            super().backward(gradient)


def test_writing_to_a_message_is_refused() -> None:
    """Messages are read-only: under seal a write is an error that says where."""
    plan = tiny.blueprint(Scribbler)
    with pytest.raises(RunFailed, match=r"client\.backward wrote to a message"):
        tiny.Federation(plan, tiny.sealed(plan, client_actors=2, placement="separate")).run(1)


KEEPING: list[dict[str, Any]] = [
    {"bn": "average"},
    {"bn": "average", "reset_optimizer": "keep", "momentum": 0.9},
    {"bn": "local", "reset_optimizer": "keep", "optimizer": "adam", "lr": 0.01},
]


def experiment(method: type[Algorithm], folder: Path, **options: Any) -> Experiment:
    """Four rounds on generated 8x8 images."""
    bn, on_client_error = options.pop("bn", "average"), options.pop("on_client_error", "stop")
    if method is ALGORITHMS["hsfl"]:
        options["intervals"] = (2, 3)
    return Experiment(
        ExperimentConfig(
            rounds=4,
            algorithm=method.Config(**{"batch_size": 8, "participation": 0.8, **options}),
            data=DataConfig(
                name="synthetic",
                num_clients=4,
                root=str(folder),
                partition=PartitionConfig(kind="dirichlet", alpha=1.0, min_size=5),
                synthetic=SyntheticConfig(num_train=60, num_test=12, num_classes=3, height=8, width=8),
            ),
            model=ModelConfig(name="cnn", width=0.125, bn=bn),
            fleet=FleetConfig(on_client_error=on_client_error),
            train=TrainConfig(dtype="float64"),
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the generated images are kept."""
    return tmp_path_factory.mktemp("data")


def steps(running: Experiment, count: int) -> list[dict[str, float]]:
    """Some rounds; what they report but for wall-clock times."""
    rows = [running.step() for _ in range(count)]
    return [{name: value for name, value in row.items() if not name.startswith("wall/")} for row in rows]


@pytest.mark.parametrize(
    "options",
    [*(pytest.param(options, marks=pytest.mark.slow) for options in KEEPING[:-1]), KEEPING[-1]],
    ids=lambda o: ",".join(f"{v}" for v in o.values()),
)
@pytest.mark.parametrize("method", METHODS)
def test_resumed_is_never_stopped(method: str, options: dict[str, Any], folder: Path) -> None:
    """A state stored after round 2 and loaded as plain tensors leads to the same rounds, bit for bit."""
    whole = experiment(ALGORITHMS[method], folder, **options)
    steps(whole, 3)
    state, stored = whole.state_dict(), io.BytesIO()
    torch.save(state, stored)
    kept = copy.deepcopy(state["parties"])
    expected = steps(whole, 2)
    stored.seek(0)
    resumed = experiment(ALGORITHMS[method], folder, **options)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    assert resumed.round == 2
    assert steps(resumed, 2) == expected
    assert identical(resumed.weights(), whole.weights())
    assert resumed.ledger.bytes == whole.ledger.bytes
    assert resumed.status == whole.status == "FINISHED"
    assert same(state["parties"], kept), "going on wrote to a stored state"


def same(one: Any, other: Any) -> bool:
    """Equality of nested plain values and tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "splitfed_v1", "splitfed_joint", "hsfl"])
@pytest.mark.parametrize("layout", [{"clients_per_actor": 3}, {"client_actors": 17}], ids=str)
def test_hosts_that_cut_a_block_of_the_summation_tree_change_no_bit(
    method: str, layout: dict[str, int]
) -> None:
    """Eighty clients make blocks of five, of which an actor of three clients holds a piece."""
    plan = tiny.blueprint(method, [3 + i % 4 for i in range(80)], num_edges=3, local_steps=1)
    here = tiny.Federation(plan).run(1)
    for placement in ("colocated", "separate"):
        there = tiny.Federation(plan, tiny.sealed(plan, placement=placement, **layout)).run(1)
        assert identical(here.weights(), there.weights())
        assert here.traffic(1) == there.traffic(1)
