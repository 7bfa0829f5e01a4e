"""The evidential head: from logits to evidence, and what a sample's evidence costs.

Evidence e >= 0 of N classes is a Dirichlet distribution of class probabilities with parameters alpha = e + 1,
strength S = sum_c alpha_c and mean p = alpha / S (Sensoy, Kaplan, Kandemir, "Evidential Deep Learning to
Quantify Classification Uncertainty", NeurIPS 2018, https://arxiv.org/abs/1806.01768).

All in float64, whatever the logits are: lgamma is about 1e7 at the strength of 100 classes at their most,
where float32 has no decimals left to subtract.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import EvidenceConfig


class _Cap(torch.autograd.Function):
    """The smaller of logits and a limit, whose gradient passes at the limit where it would lower the logit.

    A plain clamp would hold a sample that is sure and wrong for ever.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.limit = limit
        return logits.clamp(max=limit)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (logits,), (gradient,) = ctx.saved_tensors, gradients
        return torch.where((logits <= ctx.limit) | (gradient > 0), gradient, 0.0), None


def evidence(logits: Tensor, config: EvidenceConfig) -> Tensor:
    """[b, N] logits of any float type to [b, N] evidence in [0, ``config.max``]: float64 with graph."""
    limit = config.max
    if config.act == "exp":
        limit = math.log(config.max)
    elif config.act == "softplus":
        # Its inverse, without exp(max).
        limit = config.max + math.log(-math.expm1(-config.max))
    capped: Tensor = _Cap.apply(logits.double(), limit)
    if config.act == "exp":
        return capped.exp()
    return F.softplus(capped) if config.act == "softplus" else F.relu(capped)


def losses(logits: Tensor, labels: Tensor, t: int, config: EvidenceConfig) -> Tensor:
    """What each of [b, N] logits with [b] labels costs in round ``t``, from 1: [b] float64 with graph.

    L = sum_c y_c (psi(S) - psi(alpha_c)) + lambda_t KL(Dir(y + (1 - y) alpha) || Dir(1)), or another first
    term (``config.loss``); lambda_t rises linearly over ``config.kl_anneal`` rounds.
    """
    alpha = 1 + evidence(logits, config)
    strength = alpha.sum(1)
    own = alpha.gather(1, labels[:, None])[:, 0]
    if config.loss == "digamma":
        found = torch.digamma(strength) - torch.digamma(own)
    elif config.loss == "log":
        found = strength.log() - own.log()
    else:
        p = alpha / strength[:, None]
        truth = F.one_hot(labels, alpha.shape[1])
        found = ((truth - p).square() + p * (1 - p) / (strength[:, None] + 1)).sum(1)
    weight = config.lambda_kl * min(1.0, t / config.kl_anneal if config.kl_anneal else 1.0)
    if weight:
        wrong = alpha.scatter(1, labels[:, None], 1.0)
        found = found + weight * dirichlet_kl(wrong, torch.ones_like(wrong))
    if config.correct_evidence:
        vacuity = alpha.shape[1] / strength.detach()
        found = found - vacuity * logits.double().gather(1, labels[:, None])[:, 0]
    return found


def dirichlet_kl(alpha: Tensor, beta: Tensor) -> Tensor:
    """KL(Dir(alpha) || Dir(beta)) of rows: [b, N] parameters each to [b]."""
    strength = alpha.sum(1)
    slopes = torch.digamma(alpha) - torch.digamma(strength)[:, None]
    normalisers = (
        torch.lgamma(strength) - torch.lgamma(beta.sum(1)) + (torch.lgamma(beta) - torch.lgamma(alpha)).sum(1)
    )
    return normalisers + ((alpha - beta) * slopes).sum(1)
