"""From what a client observes to how deep it cuts, wherever that is worked out (FedSGA, eqs. 6 and 8)."""

import math
from collections.abc import Mapping

import torch

from rayfl.algorithms.sga import policy
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.estimator import Estimator, hand_rule
from rayfl.algorithms.sga.messages import Decision
from rayfl.messages import Weights

Inputs = tuple[float, ...]
"""What sufficiency is estimated from: alignment, drifts, last sufficiency."""


def decision(config: SGAConfig, estimator: Estimator | None, inputs: Inputs, num_candidates: int) -> Decision:
    """Sufficiency and depth; without an estimator by the rule that stands in for it."""
    observed = torch.tensor([inputs], dtype=torch.float64)
    with torch.no_grad():
        r = (hand_rule if estimator is None else estimator)(observed).item()
    # Of what has diverged nothing is known; the round goes on to where that is said.
    r = r if math.isfinite(r) else 0.0
    return Decision(r, policy.depth(r, config.rho, num_candidates))


def received(config: SGAConfig, parameters: Weights) -> Estimator | None:
    """The estimator of these parameters; None where a rule stands in for it and there are none."""
    if not parameters:
        return None
    # What it draws is written over.
    estimator = Estimator(config.estimator, torch.Generator())
    estimator.load_state_dict(dict(parameters))
    return estimator


def by_name(inputs: Mapping[int, Inputs]) -> dict[str, dict[int, float]]:
    """Name -> client -> value, of clients that there are any of."""
    return {
        name: {client: values[j] for client, values in inputs.items() if values}
        for j, name in enumerate(("a", "delta", "q", "r_prev"))
    }
