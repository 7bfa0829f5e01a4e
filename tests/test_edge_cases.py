"""What every method does with too little: a defined rule, on both halves alike, never NaN."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tiny import difference, identical

from rayfl.algorithms import ALGORITHMS
from rayfl.fleet import LocalFleet

METHODS = list(ALGORITHMS)
ODD = (0, 1, 5, 4, 9, 2)
"""Nobody, one sample, a batch and one, a batch, two batches and one, half a batch."""


def finite(state: tiny.State) -> bool:
    return all(bool(value.isfinite().all()) for value in state.values())


@pytest.mark.parametrize(("model", "drop_last"), [("mlp", False), ("batch", False), ("batch", True)])
@pytest.mark.parametrize("method", METHODS)
def test_odd_sizes(method: str, model: str, drop_last: bool) -> None:
    """Clients of size 0, 1 and one batch + 1 train or sit out; nothing is NaN and something moves."""
    plan = tiny.blueprint(method, ODD, model, num_edges=3, drop_last=drop_last, momentum=0.9)
    federation = tiny.Federation(plan)
    before, after = federation.weights(), federation.run(2).weights()
    assert finite(after)
    assert difference(before, after) > 0
    chosen = federation.algorithm.sample(1).ids
    assert chosen == ((2, 3, 4, 5) if model == "batch" else (1, 2, 3, 4, 5))


@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_odd_sizes_keep_v1_equal_to_fedavg(model: str) -> None:
    """The skipped sample is skipped on both halves, and shares agree: v1 = FedAvg still."""
    split = tiny.run(tiny.blueprint("splitfed_v1", ODD, model))
    assert difference(split, tiny.run(tiny.blueprint("fedavg", ODD, model))) < 1e-10


@pytest.mark.parametrize("method", METHODS)
def test_an_edge_without_data_or_clients(method: str) -> None:
    """An edge whose clients are all empty, and one without clients, change nothing for the others."""
    plan = tiny.blueprint(method, (5, 4, 0, 0), "batch", edges=(0, 0, 1, 1), num_edges=4)
    after = tiny.Federation(plan).run(3).weights()
    assert finite(after)
    if method in ("hierfl", "hsfl"):
        alone = tiny.blueprint(method, (5, 4), "batch", edges=(0, 0), train=plan.train)
        assert difference(after, tiny.run(alone, 3)) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_participation_that_rounds_to_zero(method: str) -> None:
    """0.01 of four clients is one client a round, not none."""
    federation = tiny.Federation(tiny.blueprint(method, participation=0.01, num_edges=2))
    assert all(len(federation.algorithm.sample(t)) == 1 for t in range(1, 6))
    before, after = federation.weights(), federation.run(2).weights()
    assert finite(after)
    assert difference(before, after) > 0


@pytest.mark.parametrize("model", ["mlp", "batch"])
@pytest.mark.parametrize("method", METHODS)
def test_nobody_shows_up(method: str, model: str) -> None:
    """With a dropout rate of 1 the weights keep every bit and no data cross a link."""
    federation = tiny.Federation(tiny.blueprint(method, model=model, dropout_rate=1.0, num_edges=2))
    before, after = federation.weights(), federation.run(3).weights()
    assert identical(before, after)
    ledger = federation.fleet.ledger
    assert (
        ledger.total(kind="activation")
        == ledger.total(link="client-fed")
        == ledger.total(link="client-main")
        == 0
    )


@pytest.mark.parametrize("method", METHODS)
def test_nobody_has_data(method: str) -> None:
    """A federation without a single batch does nothing, without NaN."""
    plan = tiny.blueprint(method, (0, 1, 0), "batch", num_edges=2, local_steps=2)
    federation = tiny.Federation(plan)
    before = federation.weights()
    assert federation.algorithm.sample(1).ids == ()
    assert identical(before, federation.run(2).weights())


@pytest.mark.parametrize("method", METHODS)
def test_some_rounds_without_anybody(method: str) -> None:
    """Rounds that all participants miss come and go."""
    plan = tiny.blueprint(method, (5, 4, 6), dropout_rate=0.7, num_edges=2, momentum=0.9)
    federation = tiny.Federation(plan)
    present = [len(federation.algorithm.sample(t)) for t in range(1, 7)]
    assert 0 in present
    assert max(present) > 0
    assert finite(federation.run(6).weights())


@pytest.mark.parametrize("config", [{"local_epochs": 0}, {"local_epochs": 0, "local_steps": 2}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_epochs(method: str, config: dict[str, Any]) -> None:
    """E = 0 trains nothing and asks nothing of clients without a batch; fixed steps outrank it. H-SFP's other
    tiers have epochs of their own."""
    above = {"edge_epochs": 0, "cloud_epochs": 0, "intervals": (1, 1)} if method == "hsfp" else {}
    federation = tiny.Federation(tiny.blueprint(method, ODD, "batch", num_edges=2, **config, **above))
    before, after = federation.weights(), federation.run(2).weights()
    assert finite(after)
    moved = difference(before, after)
    assert moved > 0 if "local_steps" in config else moved < 1e-15


@pytest.mark.parametrize("sampling", ["uniform", "by_size"])
def test_dropout_rate(sampling: str) -> None:
    """About half of those sampled show up at a rate of 0.5, the same ones whenever asked."""
    plan = tiny.blueprint("fedavg", (4,) * 10, dropout_rate=0.5, sampling=sampling)
    algorithm = tiny.Federation(plan).algorithm
    counts = [len(algorithm.sample(t)) for t in range(1, 101)]
    assert 4.2 < np.mean(counts) < 5.8
    assert counts == [len(algorithm.sample(t)) for t in range(1, 101)]


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_weights_keep_their_type(method: str) -> None:
    """float32 runs end in float32 weights and int64 counters."""
    state = tiny.run(tiny.blueprint(method, model="batch", dtype="float32", num_edges=2))
    assert {value.dtype for value in state.values()} == {torch.float32, torch.int64}


@pytest.mark.parametrize("method", METHODS)
def test_global_generators_are_left_alone(method: str) -> None:
    """A run neither draws from nor reseeds the caller's torch and numpy generators."""
    torch.manual_seed(1)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    plan = tiny.blueprint(method, model="batch", participation=0.5, num_edges=2)
    federation = tiny.Federation(plan, LocalFleet(plan)).run(2)
    first = federation.weights()
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert identical(first, tiny.run(plan))
