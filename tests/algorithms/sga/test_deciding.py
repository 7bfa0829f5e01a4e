"""From what was observed to a depth, at the server or at a client (FedSGA, eqs. 6 and 8)."""

import math

import pytest
import torch

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.deciding import by_name, decision, received
from rayfl.algorithms.sga.estimator import Estimator
from rayfl.seeding import generator

CONFIG = SGAConfig(name="fedsga", rho=0.0)


def test_by_the_rule() -> None:
    """(1 + a) / 2 exp(-delta) exp(-q): of four candidates r = .75 gives the first, less the next."""
    assert decision(CONFIG, None, (0.5, 0.0, 0.0, 0.1), 4).sufficiency == 0.75
    assert decision(CONFIG, None, (0.5, 0.0, 0.0, 0.1), 4).depth == 1
    shaken = decision(CONFIG, None, (0.5, 0.01, 0.02, 0.1), 4)
    assert shaken.sufficiency == pytest.approx(0.75 * math.exp(-0.03))
    assert shaken.depth == 2


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_nothing_is_known_of_what_has_diverged(bad: float) -> None:
    """Sufficiency 0, and so the deepest candidate."""
    found = decision(CONFIG, None, (math.nan, bad, 0.0, 0.5), 3)
    assert (found.sufficiency, found.depth) == (0.0, 3)


def test_an_estimator_that_was_sent() -> None:
    """Decides as the one that it was taken from; without parameters there is none."""
    sent, inputs = Estimator(CONFIG.estimator, generator(4, "estimator")), (0.3, 0.2, 0.1, 0.6)
    sent.refit(torch.tensor([inputs], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    there = decision(CONFIG, sent, inputs, 3)
    assert decision(CONFIG, received(CONFIG, sent.state_dict()), inputs, 3) == there
    assert decision(CONFIG, Estimator(CONFIG.estimator, generator(5, "estimator")), inputs, 3) != there
    assert received(CONFIG, {}) is None


def test_by_name() -> None:
    """A client that nothing is known of has no figures."""
    found = by_name({3: (1.0, 2.0, 3.0, 4.0), 5: ()})
    assert found == {"a": {3: 1.0}, "delta": {3: 2.0}, "q": {3: 3.0}, "r_prev": {3: 4.0}}
