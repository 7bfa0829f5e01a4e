"""The sufficiency estimator Gamma: monotone whatever its parameters, and trained as eq. 6 asks."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.sga.estimator import Estimator, EstimatorConfig, hand_rule
from rayfl.seeding import generator

CONSTRAINTS = ("softplus", "square", "abs")
POSITIVE = {"softplus": F.softplus, "square": torch.square, "abs": torch.abs}
EXPECTED = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)


def make(**options: Any) -> Estimator:
    return Estimator(EstimatorConfig(**options), generator(0, "estimator"))


def observations(draw: torch.Generator, count: int) -> Tensor:
    """Alignments in [-1, 1], drifts in [0, 5], sufficiencies in [0, 1]."""
    uniform = torch.rand(count, 4, dtype=torch.float64, generator=draw)
    low = torch.tensor([-1.0, 0, 0, 0], dtype=torch.float64)
    return low + uniform * torch.tensor([2.0, 5, 5, 1], dtype=torch.float64)


def slopes(estimator: Estimator, observed: Tensor) -> Tensor:
    """The derivatives of r at [n, 4] observations, [n, 4]."""
    observed = observed.clone().requires_grad_()
    return torch.autograd.grad(estimator(observed).sum(), observed)[0]


def of_random_parameters(estimator: Estimator, count: int, spread: float) -> tuple[Tensor, Tensor]:
    """r and its derivatives at an observation each of ``count`` draws of raw parameters of either sign."""
    draw = torch.Generator().manual_seed(1)
    parameters = {
        name: spread * torch.randn(count, *value.shape, dtype=torch.float64, generator=draw)
        for name, value in estimator.named_parameters()
    }

    def r(parameters: dict[str, Tensor], observed: Tensor) -> Tensor:
        return torch.func.functional_call(estimator, parameters, (observed[None],))[0]

    observed = observations(draw, count).requires_grad_()
    found = torch.func.vmap(r)(parameters, observed)
    return found.detach(), torch.autograd.grad(found.sum(), observed)[0]


# Half a unit is little enough that no hidden unit saturates, where floats leave a slope of 0.


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_monotone_for_any_parameters(constraint: str) -> None:
    """1000 random raw draws: r in (0, 1), up with a and r_prev, down with both drifts."""
    r, found = of_random_parameters(make(constraint=constraint), 1000, 0.5)
    assert (found * EXPECTED > 0).all()
    assert ((r > 0) & (r < 1)).all()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_never_turns_round_where_it_saturates(constraint: str) -> None:
    """With raw draws of any size the slopes may vanish in floats, but have no other sign."""
    _, found = of_random_parameters(make(constraint=constraint), 1000, 10.0)
    assert (found * EXPECTED >= 0).all()


def test_free_last_sufficiency_loses_that_guarantee_alone() -> None:
    """Some draws fall with r_prev, others rise; the other three signs hold in all."""
    _, found = of_random_parameters(make(r_prev="free"), 1000, 0.5)
    assert (found[:, :3] * EXPECTED[:3] > 0).all()
    assert found[:, 3].min() < 0 < found[:, 3].max()


def test_last_sufficiency_off() -> None:
    """r_prev has no say; the other three signs hold."""
    _, found = of_random_parameters(make(r_prev="off"), 1000, 0.5)
    assert (found[:, :3] * EXPECTED[:3] > 0).all()
    assert not found[:, 3].any()


def scramble(estimator: Estimator, draw: torch.Generator, spread: float) -> None:
    """Raw parameters of either sign."""
    with torch.no_grad():
        for parameter in estimator.parameters():
            parameter.normal_(0.0, spread, generator=draw)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_monotone_after_adversarial_labels(constraint: str) -> None:
    """Labels that say the opposite of every sign flatten the estimate and don't turn it."""
    draw = torch.Generator().manual_seed(3)
    estimator, observed = make(constraint=constraint, lr=0.1), observations(draw, 60)
    labels = ((observed * EXPECTED).sum(1) < (observed * EXPECTED).sum(1).median()).double()
    for _ in range(2):
        estimator.refit(observed, labels)
    assert (slopes(estimator, observations(draw, 200)) * EXPECTED >= 0).all()
    r = estimator(observed)
    assert ((r > 0) & (r < 1)).all()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_free_begins_as_increasing(constraint: str) -> None:
    """Only training may turn the sign of r_prev."""
    observed = observations(torch.Generator().manual_seed(4), 10)
    free, increasing = (make(r_prev=how, constraint=constraint) for how in ("free", "increasing"))
    assert torch.allclose(free(observed), increasing(observed), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("r0", "constraint", "r_prev"),
    [
        *itertools.product((0.2, 0.5, 0.9), CONSTRAINTS, ("increasing",)),
        (0.3, "softplus", "free"),
        (0.3, "abs", "off"),
    ],
)
def test_first_round_starts_at_r0(r0: float, constraint: str, r_prev: str) -> None:
    """r = r0 for a client of which nothing is known: (0, 1, 1, r0)."""
    estimator = make(r0=r0, constraint=constraint, r_prev=r_prev)
    start = torch.tensor([[0.0, 1.0, 1.0, r0]], dtype=torch.float64)
    assert estimator(start).item() == pytest.approx(r0, abs=1e-12)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_initial_weights(constraint: str) -> None:
    """Effective weights spread over (0.5, 1.5) / sqrt(fan_in), no two hidden units alike; b_1 is zero."""
    estimator = make(constraint=constraint, hidden=64)
    for raw, fan_in in ((estimator.first, 4), (estimator.second, 64)):
        scaled = POSITIVE[constraint](raw.detach()) * math.sqrt(fan_in)
        assert 0.5 <= scaled.min() < 0.6
        assert 1.4 < scaled.max() <= 1.5
    assert len(estimator.first.unique(dim=0)) == 64
    assert not estimator.first_bias.any()


def test_formula() -> None:
    """sigmoid(w_2 tanh(W_1 u + b_1) + b_2) with softplus weights, in loops over numbers."""
    estimator, draw = make(hidden=3), torch.Generator().manual_seed(6)
    scramble(estimator, draw, 1.0)
    observed = observations(draw, 5)

    def softplus(raw: float) -> float:
        return math.log1p(math.exp(raw))

    for row, r in zip(observed.tolist(), estimator(observed).tolist(), strict=True):
        u = [row[0], -row[1], -row[2], row[3]]
        total = estimator.second_bias.item()
        for j in range(3):
            inner = sum(softplus(estimator.first[j, i].item()) * u[i] for i in range(4))
            total += softplus(estimator.second[0, j].item()) * math.tanh(
                inner + estimator.first_bias[j].item()
            )
        assert r == pytest.approx(1 / (1 + math.exp(-total)), abs=1e-12)


def test_same_in_two_builds() -> None:
    """The weights are a function of the generator alone; another one gives others."""
    one, two = make().state_dict(), make().state_dict()
    assert list(one) == ["first", "second", "first_bias", "second_bias"]
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["first"], Estimator(EstimatorConfig(), generator(1, "estimator")).first)


def test_refit_is_plain_adam() -> None:
    """Two refits against a loop: mean cross-entropy written out, L2, moments that start anew."""
    config = {"lr": 0.02, "steps": 7, "weight_decay": 0.01}
    ours, plain, draw = make(**config), make(**config), torch.Generator().manual_seed(7)
    observed = observations(draw, 30)
    labels = torch.randint(2, (30,), generator=draw).double()
    for _ in range(2):
        ours.refit(observed, labels)
        optimizer = torch.optim.Adam(plain.parameters(), lr=0.02, weight_decay=0.01)
        for _ in range(7):
            optimizer.zero_grad()
            r = plain(observed)
            (-(labels * r.log() + (1 - labels) * (1 - r).log())).mean().backward()
            optimizer.step()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)
        assert mine.grad is None


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_refit_learns_what_can_be_learnt(constraint: str) -> None:
    """Labels that follow the alignment: the loss falls by more than half, and signs stay."""
    draw = torch.Generator().manual_seed(8)
    estimator, observed = make(constraint=constraint, lr=0.1), observations(draw, 100)
    labels = (observed[:, 0] > 0).double()

    def loss() -> float:
        with torch.no_grad():
            return F.binary_cross_entropy(estimator(observed), labels).item()

    before = loss()
    for _ in range(2):
        estimator.refit(observed, labels)
    assert loss() < before / 2
    assert (slopes(estimator, observed) * EXPECTED >= 0).all()


@pytest.mark.parametrize(("balance", "expected"), [(False, 0.2), (True, 0.5)])
def test_rate_of_the_labels(balance: bool, expected: float) -> None:
    """Observations that tell nothing, one label in five true: r is the rate; balanced, one half."""
    estimator = make(balance=balance, weight_decay=0.0, lr=0.1)
    observed = torch.tensor([[0.1, 0.5, 0.5, 0.5]], dtype=torch.float64).expand(20, 4)
    labels = (torch.arange(20) % 5 == 0).double()
    for _ in range(4):
        estimator.refit(observed, labels)
    assert estimator(observed)[0].item() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_balance_with_a_single_label(label: float) -> None:
    """All labels alike: weights stay finite, and r goes towards them."""
    estimator, observed = make(balance=True), observations(torch.Generator().manual_seed(9), 5)
    before = estimator(observed)
    estimator.refit(observed, torch.full((5,), label, dtype=torch.float64))
    after = estimator(observed)
    assert after.isfinite().all()
    assert ((after > before) == (label == 1.0)).all()


def test_hand_rule() -> None:
    """(1 + a) / 2 exp(-delta) exp(-q), whatever r_prev: numbers worked out by hand."""
    observed = torch.tensor([[1.0, 0, 0, 0.3], [0.0, 1, 1, 0.9], [-1.0, 0, 0, 1]], dtype=torch.float64)
    assert hand_rule(observed).tolist() == pytest.approx([1.0, 0.5 * math.exp(-2), 0.0])
