"""What local training means: rates, steps, batches, optimisers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.training import (
    TrainingConfig,
    batches,
    clip,
    lr_at,
    make_optimizer,
    samples_seen,
    steps_per_epoch,
    steps_per_round,
)


def config(**options: Any) -> TrainingConfig:
    return TrainingConfig(name="any", **options)


RATES = [
    ({"lr_schedule": "constant"}, [0.1, 0.1, 0.1, 0.1]),
    ({"lr_schedule": "exponential", "lr_decay": 0.5}, [0.1, 0.05, 0.025, 0.0125]),
    ({"lr_schedule": "exponential", "lr_decay": 0.5, "lr_min": 0.03}, [0.1, 0.05, 0.03, 0.03]),
    ({"lr_schedule": "step", "lr_decay": 0.1, "lr_period": 2}, [0.1, 0.1, 0.01, 0.01, 0.001]),
    ({"lr_schedule": "cosine", "lr_period": 2, "lr_min": 0.02}, [0.1, 0.06, 0.02, 0.02]),
    ({"lr_schedule": "constant", "lr_min": 0.5}, [0.1]),
]


@pytest.mark.parametrize(("options", "rates"), RATES)
def test_rate_of_a_round(options: dict[str, Any], rates: list[float]) -> None:
    """The rate by round, from 1, in numbers worked out by hand; never below the floor nor above lr."""
    assert [lr_at(config(lr=0.1, **options), t + 1) for t in range(len(rates))] == pytest.approx(rates)


STEPS = [
    # samples, batch, drop_last, BatchNorm -> steps per epoch
    (0, 4, False, False, 0),
    (0, 4, True, True, 0),
    (1, 4, False, False, 1),
    (1, 4, False, True, 0),
    (1, 4, True, False, 1),
    (3, 4, True, True, 1),
    (4, 4, False, True, 1),
    (5, 4, False, False, 2),
    (5, 4, False, True, 1),
    (5, 4, True, False, 1),
    (6, 4, False, True, 2),
    (6, 4, True, True, 1),
    (9, 4, False, True, 2),
    (3, 1, False, False, 3),
    (3, 1, False, True, 0),
]


@pytest.mark.parametrize(("count", "size", "drop", "norm", "steps"), STEPS)
def test_steps_and_batches(count: int, size: int, drop: bool, norm: bool, steps: int) -> None:
    """Sizes 0, 1 and B + 1: a last batch of one is skipped under BatchNorm only; no sample comes twice."""
    knobs = config(batch_size=size, drop_last=drop, local_epochs=2)
    assert steps_per_epoch(knobs, count, norm) == steps
    assert steps_per_round(knobs, count, norm) == 2 * steps
    rows = np.arange(100, 100 + count)
    stream = [list(b) for b in batches(knobs, rows, 2 * steps, norm, 0, 1, 0)]
    assert len(stream) == 2 * steps
    for epoch in (stream[:steps], stream[steps:]):
        seen = [row for batch in epoch for row in batch]
        assert len(seen) == samples_seen(knobs, count, steps, norm)
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(rows)
        if not drop and not (norm and count % size == 1):
            assert len(seen) == count * (steps > 0)
        assert all(len(batch) == min(size, count) for batch in epoch[:-1])
        assert not norm or all(len(batch) > 1 for batch in epoch)


def test_local_steps_go_on_after_a_pass() -> None:
    """A client that runs out reshuffles; a client without a batch makes none."""
    knobs = config(batch_size=4, local_steps=5, local_epochs=3)
    assert steps_per_round(knobs, 7, False) == 5
    assert steps_per_round(knobs, 0, False) == 0
    assert steps_per_round(knobs, 1, True) == 0
    stream = [list(b) for b in batches(knobs, np.arange(7), 5, False, 0, 1, 0)]
    assert [len(b) for b in stream] == [4, 3, 4, 3, 4]
    assert [samples_seen(knobs, 7, n, False) for n in range(6)] == [0, 4, 7, 11, 14, 18]
    assert sorted(stream[0] + stream[1]) == sorted(stream[2] + stream[3]) == list(range(7))
    assert stream[0] + stream[1] != stream[2] + stream[3]


def test_no_epochs_no_steps() -> None:
    """E = 0 is legal and trains nothing."""
    assert steps_per_round(config(local_epochs=0), 50, False) == 0


def test_batches_depend_on_seed_round_and_client_alone() -> None:
    """The stream is the same for a longer round, another rate or another method; other ids have others."""
    rows = np.arange(20)

    def stream(steps: int = 5, seed: int = 0, t: int = 1, client: int = 0, **options: Any) -> list[list[int]]:
        knobs = config(batch_size=4, **options)
        return [list(map(int, b)) for b in batches(knobs, rows, steps, False, seed, t, client)]

    assert stream() == stream(lr=1.0, optimizer="adam") == stream(steps=12)[:5]
    others = [stream(seed=1), stream(t=2), stream(client=1)]
    assert all(stream() != other for other in others)


@pytest.mark.parametrize(
    ("weights", "masses"), [("size", [0, 3, 9]), ("batch", [0, 3, 4]), ("uniform", [1, 1, 1])]
)
def test_mass(weights: Any, masses: list[float]) -> None:
    """A share goes by samples, by batch (at most all samples) or by head."""
    assert [config(batch_size=4, weights=weights).mass(n) for n in (0, 3, 9)] == masses


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimisers(optimizer: Any) -> None:
    """The configured optimiser with its knobs; a part without parameters is no error."""
    layer = nn.Linear(2, 1)
    knobs = config(optimizer=optimizer, weight_decay=0.25, momentum=0.5, nesterov=True)
    made = make_optimizer(knobs, layer.parameters(), 0.125)
    group = made.param_groups[0]
    assert (type(made).__name__.lower(), group["lr"], group["weight_decay"]) == (optimizer, 0.125, 0.25)
    if optimizer == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.5, True)
    make_optimizer(knobs, [], 0.1).step()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_factors_of_the_rate(optimizer: Any) -> None:
    """Each parameter moves as in an optimiser of its own at its multiple of lr; one of 0 stays."""
    factors = [None, 10.0, 0.0, 0.5, 10.0]
    start = [torch.tensor([1.0, -2.0], dtype=torch.float64) * (i + 1) for i in range(5)]
    together, alone = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    for parameter, factor in zip(together, factors, strict=True):
        if factor is not None:
            parameter.lr_factor = factor  # type: ignore[attr-defined]
    knobs = config(optimizer=optimizer, momentum=0.5, weight_decay=0.25)
    made = make_optimizer(knobs, together, 0.125)
    others = [
        make_optimizer(knobs, [parameter], 0.125 * (1.0 if factor is None else factor))
        for parameter, factor in zip(alone, factors, strict=True)
    ]
    for _ in range(3):
        for parameter in (*together, *alone):
            parameter.grad = parameter.detach() ** 2 + 1
        for each in (made, *others):
            each.step()
    for mine, theirs in zip(together, alone, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(together[2], start[2])
    assert not torch.equal(together[1], start[1])


def test_plain_parameters_come_first() -> None:
    """Without factors there is one group, as ever; with them it is the first, even if it is empty."""
    plain, quick = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    quick.lr_factor = 4.0  # type: ignore[attr-defined]

    def groups(*parameters: nn.Parameter) -> list[tuple[int, float]]:
        made = make_optimizer(config(), parameters, 0.5)
        return [(len(group["params"]), group["lr"]) for group in made.param_groups]

    assert groups(plain) == [(1, 0.5)]
    assert groups(quick, plain) == [(1, 0.5), (1, 2.0)]
    assert groups(quick) == [(0, 0.5), (1, 2.0)]
    assert groups() == [(0, 0.5)]


def test_clipping() -> None:
    """The norm 5 of (3, 4) is cut to 1: (0.6, 0.8); without a bound nothing happens."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    for bound, expected in [(None, [3.0, 4.0]), (10.0, [3.0, 4.0]), (1.0, [0.6, 0.8])]:
        weight.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
        clip(config(clip_norm=bound), [weight])
        assert weight.grad.tolist() == pytest.approx(expected, abs=1e-5)
