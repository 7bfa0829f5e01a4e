"""What samples look like: bounds, steps, logarithms, conditions."""

import math
from typing import Any

import numpy as np
import pytest
from tiny_search import LR, search

from rayfl.errors import UserError
from rayfl.loading.domains import read_domains
from rayfl.search.members import moved
from rayfl.search.space import Domain, Space
from rayfl.search.study import Study

EVERY = {
    "algorithm.lr": {"loguniform": [0.001, 1.0]},
    "algorithm.momentum": {"uniform": [0.0, 0.9]},
    "algorithm.weight_decay": {"quniform": [0.0, 0.35, 0.1]},
    "algorithm.local_epochs": {"randint": [1, 3]},
    "algorithm.batch_size": {"choice": [8, 16]},
}


def domain(**content: Any) -> Domain:
    return read_domains({"x": content})["x"]


def drawn(plan: Any, count: int) -> list[dict[str, Any]]:
    study = Study(plan, plan.space())
    return [sample for n in range(count) if (sample := study.ask(n)) is not None]


def test_samples_keep_to_bounds_and_steps_and_reach_both_ends() -> None:
    samples = drawn(search(EVERY, sampler="random"), 60)
    lr = [sample["algorithm.lr"] for sample in samples]
    assert all(0.001 <= value <= 1 for value in lr)
    # Half of a logarithmic range of three decades lies below 0.03.
    assert 0.3 < sum(value < math.sqrt(0.001) for value in lr) / 60 < 0.7
    assert all(0 <= sample["algorithm.momentum"] <= 0.9 for sample in samples)
    steps = {round(sample["algorithm.weight_decay"], 9) for sample in samples}
    assert steps == {0.0, 0.1, 0.2, 0.3}
    epochs = [sample["algorithm.local_epochs"] for sample in samples]
    assert set(epochs) == {1, 2, 3}
    assert all(isinstance(value, int) for value in epochs)
    assert {sample["algorithm.batch_size"] for sample in samples} == {8, 16}


def test_a_condition_decides_what_is_drawn() -> None:
    space = {
        "algorithm.momentum": {"uniform": [0.1, 0.9], "when": {"algorithm.optimizer": "sgd"}},
        "algorithm.optimizer": {"choice": ["sgd", "adam"]},
        "algorithm.nesterov": {"choice": [True, False], "when": {"algorithm.optimizer": ["sgd", "adamw"]}},
        "algorithm.lr": {"uniform": [0.1, 0.2], "when": {"algorithm.batch_size": 8}},
        "algorithm.clip_norm": {"uniform": [1, 2], "when": {"algorithm.batch_size": [16, 32]}},
    }
    plan = search(space, sampler="random")
    samples = drawn(plan, 30)
    assert {sample["algorithm.optimizer"] for sample in samples} == {"sgd", "adam"}
    for sample in samples:
        with_sgd = sample["algorithm.optimizer"] == "sgd"
        assert ("algorithm.momentum" in sample) == with_sgd == ("algorithm.nesterov" in sample)
        # Conditions may go by what is fixed for all trials, too.
        assert "algorithm.lr" in sample
        assert "algorithm.clip_norm" not in sample
        assert plan.space().contains(sample)
    config = plan.configs(next(s for s in samples if s["algorithm.optimizer"] == "adam"))[0]
    assert (config.algorithm.optimizer, config.algorithm.momentum) == ("adam", 0.0)


def test_a_grid_has_every_point_once() -> None:
    space = {
        "algorithm.optimizer": {"choice": ["sgd", "adam"]},
        "algorithm.momentum": {"choice": [0.5, 0.9], "when": {"algorithm.optimizer": "sgd"}},
        "algorithm.local_epochs": {"randint": [1, 2]},
    }
    points = list(search(space, sampler="grid").space().points())
    assert [list(point.values()) for point in points if point["algorithm.optimizer"] == "adam"] == [
        ["adam", 1],
        ["adam", 2],
    ]
    assert len(points) == 6
    assert len({str(point) for point in points}) == 6


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_the_same_seed_draws_the_same_samples(sampler: str) -> None:
    space = {**LR, "algorithm.momentum": {"uniform": [0.0, 0.9]}}
    same = [drawn(search(space, sampler=sampler, sampler_seed=seed), 5) for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]


@pytest.mark.parametrize(
    ("content", "inside", "outside"),
    [
        ({"uniform": [0, 1]}, [0, 0.5, 1], [-0.1, 1.1, "0.5", True]),
        ({"quniform": [0.1, 0.5, 0.2]}, [0.1, 0.1 + 0.2, 0.5], [0.2, 0.7]),
        ({"randint": [1, 3]}, [1, 3], [0, 4, 1.5]),
        ({"choice": [1, "a", None]}, [1, "a", None], [2, True, 1.0]),
    ],
)
def test_what_a_domain_contains(content: Any, inside: list[Any], outside: list[Any]) -> None:
    assert all(domain(**content).contains(value) for value in inside)
    assert not any(domain(**content).contains(value) for value in outside)


def test_moved_values_stay_within_bounds_and_move() -> None:
    """Also whole numbers, which a fifth would leave where they are, and choices, which have gaps."""
    space = {
        "algorithm.lr": {"loguniform": [0.01, 0.1]},
        "algorithm.local_epochs": {"randint": [1, 4]},
        "algorithm.batch_size": {"choice": [8, 64, 16]},
    }
    plan = search(space, scheduler="pbt", resample=0.0)
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {"algorithm.lr": 0.1, "algorithm.local_epochs": 1, "algorithm.batch_size": 16}
    seen = [values := moved(plan, values, rng) for _ in range(60)]
    assert all(Space(plan.search, {}).contains(value) for value in seen)
    assert {value["algorithm.local_epochs"] for value in seen} == {1, 2, 3, 4}
    assert {value["algorithm.batch_size"] for value in seen} == {8, 16, 64}
    assert max(value["algorithm.lr"] for value in seen) == 0.1
    first = moved(plan, {"algorithm.lr": 0.05, "algorithm.local_epochs": 2, "algorithm.batch_size": 64}, rng)
    assert first["algorithm.lr"] in (pytest.approx(0.04), pytest.approx(0.06))


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            {"algorithm.lr": {"unifrom": [0, 1]}},
            "unknown kind of 'algorithm.lr' 'unifrom': did you mean 'uniform'",
        ),
        (
            {"algorithm.lr": {"loguniform": [0, 1]}},
            "loguniform of 'algorithm.lr' is .low, high., both above 0",
        ),
        ({"algorithm.lr": {"uniform": [1, 0]}}, "got .1, 0.: see"),
        ({"algorithm.local_epochs": {"randint": [1, 2.5]}}, "whole numbers, both included"),
        ({"algorithm.lr": [0.1, 0.2]}, "must be one of choice, uniform"),
        ({"algorithm.lr": {"quniform": [0, 1, 2]}}, "quniform of 'algorithm.lr' is .low, high, step."),
        ({"algorithm.learning_rate": {"uniform": [0, 1]}}, "did you mean 'algorithm.lr'"),
        ({"algorithm.batch_size": {"uniform": [8, 64]}}, "whole number.*randint draws whole numbers"),
        ({"algorithm.optimizer": {"choice": ["sgd", "adm"]}}, "would fail.*did you mean adam"),
        ({"seed": {"choice": [0, 1]}}, "write seeds"),
        (
            {**LR, "algorithm.momentum": {"uniform": [0, 1], "when": {"algorithm.lr": 7}}},
            "which 'algorithm.lr' never is",
        ),
        (
            {
                "algorithm.lr": {"uniform": [0.1, 1], "when": {"algorithm.momentum": 0.5}},
                "algorithm.momentum": {"uniform": [0, 0.9], "when": {"algorithm.lr": 0.5}},
            },
            "conditions go in a circle",
        ),
        ({}, "needs values to draw from"),
    ],
)
def test_spaces_that_cannot_be_meant(space: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        search(space)
    assert "\n" not in str(caught.value)
