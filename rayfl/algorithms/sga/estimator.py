"""The sufficiency estimator Gamma of FedSGA: how likely the shallowest cut is good enough.

A two-layer perceptron that can't but rise with alignment and with last round's sufficiency, and fall with
both drifts: all effective weights are non-negative, tanh and sigmoid increasing (Sill, Monotonic Networks,
NeurIPS 1997, https://papers.nips.cc/paper/1358-monotonic-networks).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.nn import functional as F

SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Of alignment, feature drift, prompt drift, last sufficiency."""
FIRST_ROUND = (0.0, 1.0, 1.0)
"""Alignment and drifts of a client that nothing is known of."""
_POSITIVE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (F.softplus, lambda weight: weight.expm1().log()),
    "square": (torch.square, torch.sqrt),
    "abs": (torch.abs, lambda weight: weight),
}
"""Raw to effective weight, and back."""


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig:
    """The sufficiency estimator Gamma and its training."""

    hidden: Annotated[int, Ge(1)] = 16
    """Hidden units."""
    constraint: Literal["softplus", "square", "abs"] = "softplus"
    """What makes a raw weight non-negative."""
    r_prev: Literal["increasing", "free", "off"] = "increasing"
    """How last round's sufficiency enters: monotonically, with a weight of any sign, or not at all."""
    scope: Literal["shared", "per_client"] = "shared"
    """One estimator for all clients, with all their labels, or one each."""
    r0: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Sufficiency before the first round, and the estimate of an untrained Gamma in it."""
    lr: Annotated[float, Gt(0)] = 1e-2
    """Adam's rate."""
    steps: Annotated[int, Ge(1)] = 50
    """Full-batch steps per calibration."""
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    """Adam's L2 penalty."""
    balance: bool = False
    """Weigh both labels alike: r is then a likelihood ratio, not the probability of eq. 6."""
    buffer: Annotated[int, Ge(1)] = 2048
    """Most (observation, label) pairs kept, the newest."""


class Estimator(nn.Module):
    """r = sigmoid(w_2 tanh(W_1 u + b_1) + b_2), u = (a, -delta, -q, r_prev), in float64."""

    def __init__(self, config: EstimatorConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.signs: Tensor
        self.register_buffer("signs", torch.tensor(SIGNS, dtype=torch.float64), persistent=False)
        hidden = config.hidden
        self.first = nn.Parameter(self._raw(torch.empty(hidden, 4, dtype=torch.float64), generator))
        self.second = nn.Parameter(self._raw(torch.empty(1, hidden, dtype=torch.float64), generator))
        self.first_bias = nn.Parameter(torch.zeros(hidden, dtype=torch.float64))
        self.second_bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        with torch.no_grad():
            if config.r_prev == "free":
                # Not a raw weight: it begins as an effective one, and may change its sign from there.
                self.first[:, 3:] = _POSITIVE[config.constraint][0](self.first[:, 3:])
            # Else the first round would begin at .07, with everybody at the deepest cut.
            start = torch.tensor([[*FIRST_ROUND, config.r0]], dtype=torch.float64)
            self.second_bias.copy_(math.log(config.r0 / (1 - config.r0)) - self.logit(start))

    def _raw(self, weight: Tensor, generator: torch.Generator) -> Tensor:
        # A spread: equal weights would keep the hidden units alike for ever.
        weight.uniform_(0.5, 1.5, generator=generator).div_(math.sqrt(weight.shape[1]))
        return _POSITIVE[self.config.constraint][1](weight)

    def logit(self, observed: Tensor) -> Tensor:
        """[n, 4] observations (a, delta, q, r_prev) to [n] log-odds."""
        positive = _POSITIVE[self.config.constraint][0]
        first = positive(self.first)
        if self.config.r_prev != "increasing":
            last = self.first[:, 3:] if self.config.r_prev == "free" else torch.zeros_like(self.first[:, 3:])
            first = torch.cat([first[:, :3], last], dim=1)
        hidden = torch.tanh(F.linear(observed * self.signs, first, self.first_bias))
        return F.linear(hidden, positive(self.second), self.second_bias)[:, 0]

    def forward(self, observed: Tensor) -> Tensor:
        """[n, 4] observations to [n] sufficiencies in (0, 1)."""
        return self.logit(observed).sigmoid()

    def refit(self, observed: Tensor, labels: Tensor) -> None:
        """Fit to [n, 4] observations and [n] labels in {0, 1}, from the present parameters on (eq. 6)."""
        config = self.config
        weight = None
        if config.balance:
            share = labels.mean().clamp(1e-6, 1 - 1e-6)
            weight = torch.where(labels > 0, 0.5 / share, 0.5 / (1 - share))
        optimizer = torch.optim.Adam(self.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        for _ in range(config.steps):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(self.logit(observed), labels, weight).backward()
            optimizer.step()
        optimizer.zero_grad()


def hand_rule(observed: Tensor) -> Tensor:
    """What stands in for Gamma when it is ablated: ``(1 + a) / 2 * exp(-delta) * exp(-q)``, [n, 4] to [n]."""
    a, delta, q = observed[:, :3].unbind(1)
    return 0.5 * (1 + a) * (-delta - q).exp()
