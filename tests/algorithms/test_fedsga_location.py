"""FedSGA whose clients estimate sufficiency themselves: the same numbers, other messages."""

from collections.abc import Mapping
from typing import Any

import pytest
import tiny
import torch
from test_fedsga import EQUAL, plan_of
from tiny import identical

from rayfl.algorithms.sga.estimator import EstimatorConfig
from rayfl.errors import UserError

OFTEN: dict[str, Any] = {"calib_every": 2, "calib_offset": 1, "lr": 0.3}
FAST = {"lr": 0.3, "steps": 20}
"""An estimator that few labels move."""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"estimator": EstimatorConfig(scope="per_client", **FAST), "participation": 0.5},
    {"obs_norm": "raw", "probe": "linear", "obs_batches": 2},
    {"estimator": EstimatorConfig(r_prev="free", r0=0.8, **FAST), "num_prompts": 0},
    {"ablate": "suff_est"},
    {"strategy": "random"},
]


def both(**options: Any) -> list[tiny.Federation]:
    """With the estimator at the server and at the clients."""
    options = {"estimator": EstimatorConfig(**FAST), **OFTEN, **options}
    plans = [plan_of(tiny.SIZES, "batch", estimator_location=at, **options) for at in ("server", "client")]
    return [tiny.Federation(plan) for plan in plans]


@pytest.mark.parametrize(
    "options",
    [*OPTIONS[:2], *(pytest.param(options, marks=pytest.mark.slow) for options in OPTIONS[2:])],
    ids=["plain", "one each", "raw", "free", "rule", "random"],
)
def test_the_same_numbers(options: dict[str, Any]) -> None:
    """Depths, figures, weights and all that the servers keep, bit for bit, in every round."""
    there, here = both(**options)
    met = set()
    for t in range(1, 6):
        there.run(1)
        here.run(1)
        assert here.algorithm.report(t) == there.algorithm.report(t)
        depths = [one.fleet.gather(one.algorithm.fed.candidates()) for one in (there, here)]
        assert depths[0] == depths[1]
        met.add(tuple(depths[0].values()))
        assert identical(there.weights(), here.weights())
    assert len(met) > 1 or options.get("ablate") or "num_prompts" in options
    states = [one.party("fed").state_dict() for one in (there, here)]
    assert flat(states[0]) == flat(states[1])
    for i in range(4):
        assert identical(there.party("client", i).private, here.party("client", i).private)


def flat(value: Any) -> Any:
    """Tensors as lists, to compare what is stored."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {key: flat(item) for key, item in value.items()} if isinstance(value, Mapping) else value


@pytest.mark.parametrize("calib", [False, True])
@pytest.mark.parametrize("options", [{"scope": "shared"}, {"scope": "per_client"}, {}], ids=str)
def test_ledger(options: dict[str, Any], calib: bool) -> None:
    """Theta down if there is one, r and depth up. Only labels bring along what they are labels of."""
    ablate = {} if options else {"ablate": "suff_est"}
    estimator = EstimatorConfig(hidden=5, **options)
    there, here = both(
        estimator=estimator, calib_every=2 if calib else 50, calib_offset=0, participation=0.75, **ablate
    )
    expected, found = there.run(2).traffic(2), here.run(2).traffic(2)
    labels = len(here.party("fed").verdicts)
    assert bool(labels) is (calib and not ablate)
    theta = 5 * 4 + 5 + 5 + 1 if options else 0
    expected["client-fed", "down", "weights"] += 3 * 8 * theta
    del expected["client-fed", "down", "control"]
    expected["client-fed", "up", "control"] = 3 * 16 + labels * (16 + 32)
    assert found == expected


def test_parameters_that_were_sent_stay() -> None:
    """Whatever is learnt after: the message is a copy."""
    fed = both()[1].run(1).party("fed")
    sent = fed.parameters({0: None, 2: None})
    assert identical(sent[0], sent[2])
    before = {name: value.clone() for name, value in sent[0].items()}
    fed.estimators.learn({0: (0.5, 1.0, 1.0, 0.5)}, {0: True})
    assert identical(sent[0], before)
    assert not identical(fed.parameters({0: None})[0], before)


def test_a_fixed_depth_is_given_by_the_server() -> None:
    """Nothing is estimated, so nothing changes: not one byte."""
    there, here = (one.run(2) for one in both(strategy="static"))
    assert +here.fleet.ledger.bytes == +there.fleet.ledger.bytes


@pytest.mark.parametrize("obs_norm", ["cohort", "running_z"])
def test_refused_where_a_client_needs_all_others(obs_norm: Any) -> None:
    """With a way out on either side; a fixed depth asks for neither."""
    options: dict[str, Any] = {"obs_norm": obs_norm, "estimator_location": "client"}
    with pytest.raises(UserError, match=f"obs_norm={obs_norm} compares") as caught:
        tiny.Federation(plan_of(EQUAL, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert all(way in message for way in ("obs_norm=relative or raw", "estimator_location=server"))
    tiny.Federation(plan_of(EQUAL, strategy="static", **options))
