"""How much two clients exchange (BCC): the fraction rho of each class that best cancels their deviations.

A client's deviation is d = P - P_g, its label mix [N] less the global one. When clients i and j exchange a
fraction rho of a class, its joint bias becomes

    F(rho) = w_i |d_i + rho (d_j - d_i)| + w_j |d_j + rho (d_i - d_j)|
           = D (w_i |rho - a| + w_j |rho - (1 - a)|)      with D = |d_i| + |d_j|, a = |d_i| / D

where the class is complementary (d_i d_j < 0). F falls left of both points, rises right of both, and between
them falls towards the heavier client's. So rho* = a where w_i > w_j (i lands on P_g), 1 - a where w_j > w_i
(j does), and anything between where they weigh the same. F is convex: the nearest allowed rho is the best
one, and no worse than 0. On a class that both have too much or too little of, the two can't help each other:
rho = 0.

Reconstructed: the paper announces the three cases without their formulas.
"""

import numpy as np
import numpy.typing as npt

from rayfl.algorithms.bes.config import PairingConfig

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EQUAL = 1e-12
"""Weights no farther apart, relatively, count as equal: a sum's last bits must not decide who is heavier."""


def fractions(d_i: Floats, d_j: Floats, w_i: Floats, w_j: Floats, config: PairingConfig) -> Floats:
    """rho [*, N] in 0..rho_max of deviations [*, N] and weights [*, 1]; the same with i and j swapped.

    ``tie_tol`` well above 0 with ``rho_tie: max`` can make worse what it takes for a tie.
    """
    tied = np.abs(w_i - w_j) <= max(config.tie_tol, EQUAL) * np.maximum(w_i, w_j)
    w_i, w_j = np.where(tied, 1.0, w_i), np.where(tied, 1.0, w_j)
    best = _classwise if config.rho_mode == "classwise" else _scalar
    return np.clip(best(d_i, d_j, w_i, w_j, config), 0.0, config.rho_max)


def _classwise(d_i: Floats, d_j: Floats, w_i: Floats, w_j: Floats, config: PairingConfig) -> Floats:
    """The weighted median of two points."""
    complementary = d_i * d_j < 0
    size = np.where(complementary, np.abs(d_i) + np.abs(d_j), 1.0)
    # Not 1 - a: both are the same number whoever is called i.
    of_i, of_j = np.abs(d_i) / size, np.abs(d_j) / size
    tie = {"min": np.minimum(of_i, of_j), "mid": np.full_like(of_i, 0.5), "max": np.maximum(of_i, of_j)}
    best = np.where(w_i > w_j, of_i, np.where(w_j > w_i, of_j, tie[config.rho_tie]))
    return np.where(complementary, best, 0.0)


def _scalar(d_i: Floats, d_j: Floats, w_i: Floats, w_j: Floats, config: PairingConfig) -> Floats:
    """One rho for all classes, those without complement included.

    It minimises sum_n D_n (w_i |rho - a_n| + w_j |rho - (1 - a_n)|), D_n = |P_j - P_i|: the weighted median
    of all those points.
    """
    apart = d_j - d_i
    steps = np.where(apart == 0, 1.0, apart)
    points = np.concatenate([-d_i / steps, d_j / steps], axis=-1)
    weights = np.concatenate([w_i * np.abs(apart), w_j * np.abs(apart)], axis=-1)
    order = np.argsort(points, axis=-1, kind="stable")
    points, below = np.take_along_axis(points, order, -1), np.take_along_axis(weights, order, -1).cumsum(-1)
    half = below[..., -1:] / 2
    slack = EQUAL * half
    # Between the two medians F is flat.
    low = np.take_along_axis(points, np.argmax(below >= half - slack, axis=-1, keepdims=True), -1)
    high = np.take_along_axis(points, np.argmax(below > half + slack, axis=-1, keepdims=True), -1)
    best = {"min": low, "mid": (low + high) / 2, "max": high}[config.rho_tie]
    return np.where(half > 0, best, 0.0) * np.ones_like(d_i)


def exchanged(d_i: Floats, d_j: Floats, rho: Floats) -> tuple[Floats, Floats]:
    """The deviations [*, N] after the exchange, of label mixes that need no longer sum to 1."""
    return d_i + rho * (d_j - d_i), d_j + rho * (d_i - d_j)


def joint_bias(d_i: Floats, d_j: Floats, w_i: Floats, w_j: Floats) -> Floats:
    """sum_n w_i |d_i| + w_j |d_j|: [*]."""
    bias: Floats = (w_i * np.abs(d_i) + w_j * np.abs(d_j)).sum(-1)
    return bias
