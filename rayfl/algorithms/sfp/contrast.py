"""Contrastive losses: features of one class close together, others apart."""

import torch
from torch import Tensor
from torch.nn import functional


def directions(features: Tensor, where: str = "gap") -> Tensor:
    """Unit vectors [b, d] of features [b, d] or maps [b, C, H, W], pooled (``gap``) or flattened."""
    flat = features.mean((2, 3)) if where == "gap" and features.dim() == 4 else features.flatten(1)
    return functional.normalize(flat, dim=1, eps=1e-8)


def supcon(directions: Tensor, labels: Tensor, tau: float) -> Tensor:
    """The supervised NT-Xent loss of unit vectors [b, d] with labels [b]: a scalar with graph.

    -(1/|V|) sum_{i in V} (1/|P(i)|) sum_{p in P(i)} log softmax_{a != i}(z_i . z_a / tau)[p], where P(i) are
    the others of i's class and V the anchors that have any; 0 where nobody has.
    Source: Khosla et al. 2020, https://arxiv.org/abs/2004.11362, eq. 2, without its factor of temperatures.
    """
    if len(labels) < 2:
        return directions.sum() * 0.0
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = (labels[:, None] == labels) & ~itself
    similarity = (directions @ directions.T / tau).masked_fill(itself, -torch.inf)
    log_share = (similarity - similarity.logsumexp(1, keepdim=True)).masked_fill(~positive, 0.0)
    of_anchor = log_share.sum(1) / positive.sum(1).clamp_min(1)
    return -of_anchor.sum() / positive.any(1).sum().clamp_min(1)


def infonce(directions: Tensor, tau: float) -> Tensor:
    """The same without labels: of [2b, d], rows i and i + b are two views of one sample, all others not."""
    samples = torch.arange(len(directions) // 2, device=directions.device).repeat(2)
    return supcon(directions, samples, tau)
