"""How two batches train two server-side models (BCC): what each sample counts to either one.

A sample of class n counts 1 - rho_n to its own client's model and rho_n to the partner's, so that each model
meets the label mix that ``mixing`` is about. Reconstructed: the paper speaks of class-wise signals whose
gradients are aggregated and go back to their originators, and of implicit loss mixing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import PairingConfig
from rayfl.cutting import Values, each

Pair = tuple[Tensor, Tensor]
"""Of the first client's batch and of the second one's: [b] each."""


@dataclass(frozen=True)
class Side:
    """What one client's server-side model is trained on in a step."""

    own: Tensor
    """[b] what each sample of the client counts, in [0, 1]."""
    rows: Tensor
    """[m] int64, the samples of the partner that count anything."""
    borrowed: Tensor
    """[m] what these count."""

    @property
    def counts(self) -> Tensor:
        """[b + m] of all."""
        return torch.cat([self.own, self.borrowed])

    def mean(self, costs: Tensor) -> Tensor:
        """The mean of [b + m] costs: a scalar with graph."""
        counts = self.counts
        # All of a client's samples may be swapped away.
        return (counts * costs).sum() / counts.sum().clamp_min(1e-12)


def active(rho: Tensor, first_gives: Tensor, labels: Pair) -> Tensor:
    """rho [N] of the classes whose giver has a sample in its batch, 0 of all others.

    Where a giver has none, to exchange would only take from what the other has.
    """
    has = [F.one_hot(some, len(rho)).any(0) for some in labels]
    return torch.where(torch.where(first_gives, has[0], has[1]), rho, 0.0)


def sides(rho: Tensor, labels: Pair, config: PairingConfig, draw: torch.Generator) -> tuple[Side, Side]:
    """Of active fractions [N] and both batches' labels; under ``swap`` every sample goes by lot."""
    given = [rho[some] for some in labels]
    if config.mode == "swap":
        lots = [torch.rand(len(some), generator=draw, dtype=rho.dtype).to(rho.device) for some in given]
        given = [(lot < some).to(rho.dtype) for lot, some in zip(lots, given, strict=True)]
    return _side(given[0], given[1], config), _side(given[1], given[0], config)


def _side(gives: Tensor, gets: Tensor, config: PairingConfig) -> Side:
    rows = gets.nonzero()[:, 0]
    factor = len(gives) / len(gets) if config.scale else 1.0
    return Side(1 - gives, rows, factor * gets[rows])


def mixed(rho: Tensor, own: Values, other: Values, labels: Pair) -> Values:
    """Features ``own`` [b, *cut], each drawn by its class's rho to one of ``other`` of that class.

    The k-th sample of a class meets the partner's k-th, beginning anew where there are fewer. Samples without
    partner stay as they are. ``labels`` are of ``own`` and of ``other``.
    """
    mine, theirs = labels
    same = mine[:, None] == theirs
    place = (mine[:, None] == mine).tril(-1).sum(1)
    count = same.sum(1)
    # The partner's samples of a class in front, in order; of those the place-th.
    order = same.int().argsort(dim=1, descending=True, stable=True)
    partner = order.gather(1, (place % count.clamp(min=1))[:, None])[:, 0]
    share = torch.where(count > 0, rho[mine], 0.0)

    def drawn(value: Tensor, towards: Tensor) -> Tensor:
        factor = share.to(value.dtype).reshape(-1, *[1] * (value.dim() - 1))
        return value + factor * (towards[partner] - value)

    result: Values = each(drawn, own, other)
    return result
