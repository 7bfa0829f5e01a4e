"""The policy Psi (FedSGA, eq. 8): thresholds, range, and which way it goes."""

import math

import pytest

from rayfl.algorithms.sga.policy import depth

GRID = [i / 60 for i in range(61)]
HAIR = 1e-7


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 4, 8, 12])
def test_range_and_directions(num_candidates: int) -> None:
    """Always one of 1..K; more sufficiency never deepens, a larger margin never makes shallower."""
    for rho in GRID:
        depths = [depth(r, rho, num_candidates) for r in GRID]
        assert set(depths) <= set(range(1, num_candidates + 1))
        assert depths == sorted(depths, reverse=True)
    for r in GRID:
        depths = [depth(r, rho, num_candidates) for rho in GRID]
        assert depths == sorted(depths)


@pytest.mark.parametrize("num_candidates", [1, 3, 4, 12])
def test_ends(num_candidates: int) -> None:
    """Sure and without margin: the shallowest cut; hopeless: the deepest."""
    assert depth(1.0, 0.0, num_candidates) == 1
    assert depth(0.0, 0.0, num_candidates) == depth(0.0, 5.0, num_candidates) == num_candidates


@pytest.mark.parametrize(
    ("num_candidates", "thresholds"), [(3, (0.7666667, 0.4333333)), (4, (0.85, 0.60, 0.35))]
)
def test_thresholds(num_candidates: int, thresholds: tuple[float, ...]) -> None:
    """At rho = 0.1, candidate k ends where K (1 - r + rho) = k: at r = 1.1 - k / K, still its own."""
    for k, printed in enumerate(thresholds, start=1):
        exact = 1.1 - k / num_candidates
        assert exact == pytest.approx(printed, abs=1e-6)
        assert depth(exact + HAIR, 0.1, num_candidates) == k
        assert depth(exact - HAIR, 0.1, num_candidates) == k + 1
        assert depth(exact, 0.1, num_candidates) == k


def test_rounding_of_floats_does_not_deepen() -> None:
    """4 (1 - 0.95 + 0.2) is 1.0000000000000002 in floats, and still the first candidate."""
    assert math.ceil(4 * (1 - 0.95 + 0.2)) == 2
    assert depth(0.95, 0.2, 4) == 1
