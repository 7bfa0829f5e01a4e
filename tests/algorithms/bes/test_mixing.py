"""The fraction exchanged against a search through all of them, and what it promises."""

from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.bes.config import PairingConfig
from rayfl.algorithms.bes.mixing import Floats, exchanged, fractions, joint_bias

N = 6
CAPS = (0.0, 0.1, 0.5, 1.0)
GRID = np.linspace(0, 1, 1001)


def draws(count: int = 200, seed: int = 0) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """P_i, P_j, P_g [count, N], some classes empty, and w_i, w_j [count, 1], a third of them equal."""
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(N, 0.5), (3, count)) * (rng.random((3, count, N)) < 0.8) + 1e-300
    mixes /= mixes.sum(-1, keepdims=True)
    w = rng.random((2, count, 1))
    w[1, ::3] = w[0, ::3]
    return (*mixes, *w)  # type: ignore[return-value]


def by_class(d_i: Floats, d_j: Floats, w_i: Floats, w_j: Floats, rho: Floats) -> Floats:
    """F_n(rho) from label mixes, as it is defined."""
    return w_i * np.abs((1 - rho) * d_i + rho * d_j) + w_j * np.abs((1 - rho) * d_j + rho * d_i)


@pytest.mark.parametrize("tie", ["min", "mid", "max"])
@pytest.mark.parametrize("cap", CAPS)
def test_class_by_class_nothing_is_better(cap: float, tie: Any) -> None:
    p_i, p_j, p_g, w_i, w_j = draws()
    d_i, d_j = p_i - p_g, p_j - p_g
    rho = fractions(d_i, d_j, w_i, w_j, PairingConfig(rho_max=cap, rho_tie=tie))
    assert rho.min() >= 0
    assert rho.max() <= cap
    found = by_class(d_i, d_j, w_i, w_j, rho)
    joint = joint_bias(*exchanged(d_i, d_j, rho), w_i, w_j)
    assert np.allclose(joint, found.sum(1), rtol=0, atol=1e-12)
    complementary = d_i * d_j < 0
    for other in GRID[cap >= GRID]:
        better = by_class(d_i, d_j, w_i, w_j, other) < found - 1e-12
        assert not better[complementary].any()
    assert (found <= by_class(d_i, d_j, w_i, w_j, np.zeros(1)) + 1e-15).all()
    assert (rho[~complementary] == 0).all()
    assert 0.2 < complementary.mean() < 0.8


def test_the_three_cases() -> None:
    """i lands on the global mix, j does, or either may; the minimum is min(w) ||d_i| - |d_j||."""
    p_i, p_j, p_g, w_i, w_j = draws()
    d_i, d_j = p_i - p_g, p_j - p_g
    complementary = d_i * d_j < 0
    for tie in ("min", "mid", "max"):
        rho = fractions(d_i, d_j, w_i, w_j, PairingConfig(rho_max=1, rho_tie=tie))  # type: ignore[arg-type]
        after_i, after_j = (1 - rho) * p_i + rho * p_j, (1 - rho) * p_j + rho * p_i
        assert np.allclose((after_i - p_g)[complementary & (w_i > w_j)], 0, rtol=0, atol=1e-12)
        assert np.allclose((after_j - p_g)[complementary & (w_i < w_j)], 0, rtol=0, atol=1e-12)
        least = np.minimum(w_i, w_j) * np.abs(np.abs(d_i) - np.abs(d_j))
        found = by_class(d_i, d_j, w_i, w_j, rho)
        assert np.allclose(found[complementary], least[complementary], rtol=0, atol=1e-12)
        equal = complementary & (w_i == w_j)
        a = np.abs(d_i) / (np.abs(d_i) + np.abs(d_j))
        ends = {"min": np.minimum(a, 1 - a), "mid": np.full_like(a, 0.5), "max": np.maximum(a, 1 - a)}
        assert np.allclose(rho[equal], ends[tie][equal], rtol=0, atol=1e-12)
        assert equal.any()


def test_by_hand() -> None:
    """d_i = -.3, d_j = .1: D = .4, so i is there at 3/4, j at 1/4. The second class has both on one side."""
    d_i, d_j = np.array([-0.3, 0.2]), np.array([0.1, 0.3])
    one, two = np.array([1.0]), np.array([2.0])
    config = PairingConfig(rho_max=1)
    assert fractions(d_i, d_j, two, one, config).tolist() == pytest.approx([0.75, 0])
    assert fractions(d_i, d_j, one, two, config).tolist() == pytest.approx([0.25, 0])
    assert fractions(d_i, d_j, one, one, config).tolist() == pytest.approx([0.25, 0])
    assert fractions(d_i, d_j, two, one, PairingConfig()).tolist() == pytest.approx([0.5, 0])


@pytest.mark.parametrize("mode", ["classwise", "scalar"])
def test_rounding_breaks_no_tie(mode: Any) -> None:
    """And a tolerance takes for equal what is nearly so."""
    d_i, d_j = np.array([-0.3, 0.3]), np.array([0.1, -0.1])
    config = PairingConfig(rho_max=1, rho_mode=mode)
    for less in (1.0, 1 - 1e-13):
        assert fractions(d_i, d_j, np.array([0.1]), np.array([0.1 * less]), config)[0] == pytest.approx(0.25)
    wide = PairingConfig(rho_max=1, rho_mode=mode, tie_tol=0.1)
    heavier, lighter = np.array([0.1]), np.array([0.095])
    assert fractions(d_i, d_j, heavier, lighter, config)[0] == pytest.approx(0.75)
    assert fractions(d_i, d_j, heavier, lighter, wide)[0] == pytest.approx(0.25)


@pytest.mark.parametrize("tie", ["min", "mid", "max"])
@pytest.mark.parametrize("cap", CAPS)
def test_one_fraction_for_all_classes(cap: float, tie: Any) -> None:
    """Nothing is better for all classes together, and it is one number."""
    p_i, p_j, p_g, w_i, w_j = draws()
    d_i, d_j = p_i - p_g, p_j - p_g
    rho = fractions(d_i, d_j, w_i, w_j, PairingConfig(rho_mode="scalar", rho_max=cap, rho_tie=tie))
    assert rho.shape == d_i.shape
    assert (rho == rho[:, :1]).all()
    assert 0 <= rho.min() <= rho.max() <= cap
    found = by_class(d_i, d_j, w_i, w_j, rho).sum(1)
    for other in GRID[cap >= GRID]:
        assert (by_class(d_i, d_j, w_i, w_j, other).sum(1) >= found - 1e-12).all()
    if tie != "min":
        least = fractions(d_i, d_j, w_i, w_j, PairingConfig(rho_mode="scalar", rho_max=cap))
        assert (rho >= least).all()
        assert cap < 0.5 or (rho > least).any()


def test_one_fraction_between_equals() -> None:
    """Nothing apart, nothing to exchange."""
    d, w = np.array([0.2, -0.2]), np.array([0.5])
    assert fractions(d, d, w, w, PairingConfig(rho_mode="scalar")).tolist() == [0, 0]


@pytest.mark.parametrize("mode", ["classwise", "scalar"])
@pytest.mark.parametrize("tie", ["min", "mid", "max"])
def test_who_is_called_i_makes_no_difference_in_any_bit(mode: Any, tie: Any) -> None:
    p_i, p_j, p_g, w_i, w_j = draws()
    config = PairingConfig(rho_mode=mode, rho_tie=tie)
    one = fractions(p_i - p_g, p_j - p_g, w_i, w_j, config)
    other = fractions(p_j - p_g, p_i - p_g, w_j, w_i, config)
    assert np.array_equal(one, other)


def test_uniform_weights_leave_what_both_share() -> None:
    """The least sum over classes is ||P_i + P_j - 2 P_g||_1; and what leaves one mix is in the other."""
    p_i, p_j, p_g, w, _ = draws()
    d_i, d_j, ones = p_i - p_g, p_j - p_g, np.ones_like(w)
    rho = fractions(d_i, d_j, ones, ones, PairingConfig(rho_max=1))
    after_i, after_j = exchanged(d_i, d_j, rho)
    assert np.allclose(after_i, (1 - rho) * p_i + rho * p_j - p_g, rtol=0, atol=1e-12)
    assert np.allclose(after_i + after_j, d_i + d_j, rtol=0, atol=1e-12)
    least = np.abs(p_i + p_j - 2 * p_g).sum(1)
    assert np.allclose(joint_bias(after_i, after_j, ones, ones), least, rtol=0, atol=1e-12)
