"""FedSGA's figures of a round, in numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.health import HEALTH, health, health_names
from rayfl.algorithms.sga.interfaces import PROMPTS, Candidate

CANDIDATES = [Candidate(name, ()) for name in ("layer1", "layer2", "layer3")]
OF_CLIENTS = {0: (0.4, 100), 2: (0.7, 50), 5: (0.25, 30)}
DEPTHS = {0: 1, 1: 2, 2: 3, 5: 1}
"""Client 1 sits this round out."""


def found(**changes: dict[int, float]) -> dict[str, dict[int, float]]:
    return {
        "r": {0: 0.9, 2: 0.1, 5: 0.8},
        "a": {0: 0.5, 2: -0.1, 5: 0.0},
        "delta": {0: 0.2, 2: 1.0, 5: 0.3},
        "q": {0: 0.1, 2: 1.0, 5: 0.6},
        "r_prev": {0: 0.5, 2: 0.5, 5: 0.5},
        "label": {0: 1.0, 2: 0.0, 5: 0.0},
        "ratio": {0: 1.01, 2: 1.8, 5: 1.2},
        "right": {0: 2 / 3},
        "r_mean": {0: 0.5, 1: 0.6, 2: 0.7},
        **changes,
    }


def test_clients() -> None:
    """What each participant saw of itself, was given, and cut at."""
    row = health(found(), OF_CLIENTS, DEPTHS, CANDIDATES)
    for name in ("r", "a", "delta", "q"):
        own = {key: value for key, value in row.items() if key.startswith(f"fedsga/{name}/")}
        assert own == {f"fedsga/{name}/client{i}": value for i, value in found()[name].items()}
    depths = {key: value for key, value in row.items() if key.startswith("fedsga/depth/")}
    assert depths == {"fedsga/depth/client0": 1.0, "fedsga/depth/client2": 3.0, "fedsga/depth/client5": 1.0}


def test_histogram_and_bytes_by_depth() -> None:
    """Of participants alone, with a zero where nobody cuts."""
    row = health(found(), OF_CLIENTS, DEPTHS, CANDIDATES)
    assert [row[f"fedsga/clients_at/{one.name}"] for one in CANDIDATES] == [2.0, 0.0, 1.0]
    assert [row[f"fedsga/bytes_at/{one.name}"] for one in CANDIDATES] == [130.0, 0.0, 50.0]


def test_distributions() -> None:
    """Quantiles and spread of r over clients, spread of its mean over rounds, labels and loss ratios."""
    row = health(found(), OF_CLIENTS, DEPTHS, CANDIDATES)
    # Of 0.1, 0.8, 0.9, and of 1.01, 1.2, 1.8, with linear interpolation
    assert [row[f"fedsga/r_q{q}"] for q in (10, 50, 90)] == pytest.approx([0.24, 0.8, 0.88])
    assert [row[f"fedsga/ratio_q{q}"] for q in (10, 50, 90)] == pytest.approx([1.048, 1.2, 1.68])
    assert row["fedsga/r_std_within"] == pytest.approx(np.sqrt((0.5**2 + 0.2**2 + 0.3**2) / 3))
    assert row["fedsga/r_std_between"] == pytest.approx(np.sqrt(0.02 / 3))
    assert row["fedsga/label_rate"] == pytest.approx(1 / 3)
    assert row["fedsga/estimator_accuracy"] == pytest.approx(2 / 3)
    assert row["fedsga/max_alpha"] == 0.7


def test_no_calibration_no_labels() -> None:
    row = health(found(label={}, ratio={}, right={}), OF_CLIENTS, DEPTHS, CANDIDATES)
    assert not [key for key in row if "label" in key or "ratio" in key or "accuracy" in key]
    assert "fedsga/r_q50" in row


def test_no_estimates_and_no_prompts() -> None:
    """A static cut has depths alone; without prompts there is no share to speak of."""
    nothing: dict[str, dict[int, float]] = {name: {} for name in found()}
    row = health(nothing, {0: (0.0, 7), 1: (0.0, 8)}, {0: 2, 1: 2}, CANDIDATES)
    assert {key: value for key, value in row.items() if value} == {
        "fedsga/depth/client0": 2.0,
        "fedsga/depth/client1": 2.0,
        "fedsga/clients_at/layer2": 2.0,
        "fedsga/bytes_at/layer2": 15.0,
    }
    assert not [key for key in row if key.startswith("fedsga/r") or "alpha" in key]


def test_pictures_show_what_is_logged() -> None:
    """Every name in the picture of health is a figure of some round."""
    row = health(found(), OF_CLIENTS, DEPTHS, CANDIDATES)
    assert [name for names in HEALTH.panels.values() for name in names if name not in row] == []


@pytest.mark.parametrize(
    ("options", "rounds", "missing"),
    [
        ({}, 5, ()),
        ({}, 4, ("label", "ratio", "accuracy")),
        ({"ablate": "suff_est"}, 5, ("label", "ratio", "accuracy")),
        ({"strategy": "static"}, 5, ("label", "ratio", "accuracy", "/r", "/a/", "/delta/", "/q/")),
        ({"num_prompts": 0}, 5, ("alpha",)),
    ],
)  # fmt: skip
def test_names(options: dict[str, Any], rounds: int, missing: tuple[str, ...]) -> None:
    """What a run can log, known before it starts: all of a round that calibrates, less what it leaves out."""
    config = SGAConfig(name="fedsga", **options)
    prompts = (PROMPTS,) if config.prompts else ()
    candidates = [Candidate(one.name, prompts) for one in CANDIDATES]
    every = dict.fromkeys(range(6), 0.5)
    shares = dict.fromkeys(every, (0.5, 1))
    report = dict.fromkeys(("r", "a", "delta", "q", "label", "ratio", "r_mean", "right"), every)
    whole = health(report, shares, dict.fromkeys(every, 1), candidates)
    expected = [name for name in whole if not any(part in name for part in missing)]
    assert sorted(health_names(config, candidates, 6, rounds)) == sorted(expected)
