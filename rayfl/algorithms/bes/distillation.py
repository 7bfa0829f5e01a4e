"""What the auxiliary model of a client learns from its two teachers (DTD).

The feature teacher, the client-side model, is matched by relations within a batch: features of different
sizes can be compared so. The evidence teacher, the global model, is matched by evidence, strength included,
not just by its mean. Neither gets a gradient.

Reconstructed: the paper names pairwise relation matrices, evidence-aware distillation and a temperature; the
losses are ours, with other readings as options of ``DistillationConfig``.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import DistillationConfig
from rayfl.algorithms.bes.evidence import dirichlet_kl


def relation_loss(teacher: Tensor, student: Tensor, config: DistillationConfig) -> Tensor:
    """L_C = ||R(student) - R(teacher)||_F^2 / b^2 of [b, d] and [b, d'] features: a scalar with graph.

    R is b x b: cosines; rows of inner products, scaled to unit length (``sp``: Tung and Mori,
    "Similarity-Preserving Knowledge Distillation", ICCV 2019, https://arxiv.org/abs/1907.09682); or distances
    over their mean, whose differences take Huber's loss (``rkd_d``: Park, Kim, Lu, Cho, "Relational Knowledge
    Distillation", CVPR 2019, https://arxiv.org/abs/1904.05068). 0 of a single sample.
    """
    relations = {"cosine": _cosines, "sp": _products, "rkd_d": _distances}[config.feature]
    wanted, found = (
        relations(features - features.mean(0) if config.relation_centre else features)
        for features in (teacher.detach().double(), student.double())
    )
    return F.smooth_l1_loss(found, wanted) if config.feature == "rkd_d" else F.mse_loss(found, wanted)


def _cosines(features: Tensor) -> Tensor:
    directions = F.normalize(features, dim=1, eps=1e-8)
    return directions @ directions.T


def _products(features: Tensor) -> Tensor:
    return F.normalize(features @ features.T, dim=1, eps=1e-8)


def _distances(features: Tensor) -> Tensor:
    norms = features.square().sum(1)
    squares = norms[:, None] + norms - 2 * features @ features.T
    # The root of 0 has no slope; rounding leaves about this much of it.
    apart = squares > 1e-12 * norms.max()
    distances = torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)
    return distances / (distances.sum() / apart.sum().clamp(min=1)).clamp_min(1e-8)


def evidence_losses(teacher: Tensor, student: Tensor, config: DistillationConfig) -> Tensor:
    """L_G of [b, N] evidence each: [b] float64 with graph, 0 where both are equal.

    Tempered alpha = 1 + e / tau: to divide alpha itself would make parameters below 1, whose density lies in
    the corners. ``dirichlet_kl`` has no scale of its own and can be a hundred times the evidential loss; the
    default divides it by the teacher's tempered strength.
    """
    teacher, student, tau = teacher.detach().double() / config.tau, student.double() / config.tau, config.tau
    if config.evidence == "mean_kl":
        return tau**2 * _kl((1 + teacher).log() / tau, (1 + student).log() / tau)
    if config.evidence == "evidence_softmax":
        return tau**2 * _kl(teacher, student)
    if config.evidence == "evidence_mse":
        return (student - teacher).square().mean(1)
    found = dirichlet_kl(1 + teacher, 1 + student)
    return found / (1 + teacher).sum(1) if config.evidence == "dirichlet_kl_unit" else found


def _kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL of softmaxes of [b, N] logits: [b]."""
    wanted, found = teacher.log_softmax(1), student.log_softmax(1)
    return (wanted.exp() * (wanted - found)).sum(1)


def combined(edl: Tensor, feature: Tensor, evidence: Tensor, config: DistillationConfig) -> Tensor:
    """L_A = L_edl + lambda_C L_C + lambda_G L_G, or with 1 - lambda_C - lambda_G before L_edl."""
    own = 1.0 if config.combine == "additive" else 1 - config.lambda_c - config.lambda_g
    return own * edl + config.lambda_c * feature + config.lambda_g * evidence
