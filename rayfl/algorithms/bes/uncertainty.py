"""How unsure evidence is, and of what: all of [b, N] evidence, a number in [0, 1] per sample.

The predictive entropy divides into the expected entropy (aleatoric: what is left with any amount of data)
and the mutual information of label and probabilities (epistemic). Vacuity is the share of the prior in all
that is known; dissonance how much the beliefs contradict each other (Josang, Cho, Chen, "Uncertainty
Characteristics of Subjective Opinions", FUSION 2018, https://doi.org/10.23919/ICIF.2018.8455454).
"""

import math

import torch
from torch import Tensor

from rayfl.algorithms.bes.config import EvidenceConfig


def uncertainties(evidence: Tensor, config: EvidenceConfig) -> tuple[Tensor, Tensor]:
    """Aleatoric [b] and epistemic [b], of the kinds that ``config`` names."""
    aleatoric = expected_entropy if config.aleatoric == "expected_entropy" else dissonance
    epistemic = vacuity if config.epistemic == "vacuity" else mutual_information
    return aleatoric(evidence), epistemic(evidence)


def expected_entropy(evidence: Tensor) -> Tensor:
    """sum_c p_c (psi(S + 1) - psi(alpha_c + 1)) / ln N."""
    alpha = 1 + evidence
    strength = alpha.sum(1, keepdim=True)
    gaps = torch.digamma(strength + 1) - torch.digamma(alpha + 1)
    return (alpha / strength * gaps).sum(1) / math.log(alpha.shape[1])


def total_entropy(evidence: Tensor) -> Tensor:
    """-sum_c p_c ln p_c / ln N."""
    alpha = 1 + evidence
    p = alpha / alpha.sum(1, keepdim=True)
    return -(p * p.log()).sum(1) / math.log(alpha.shape[1])


def mutual_information(evidence: Tensor) -> Tensor:
    """Total less expected entropy."""
    return (total_entropy(evidence) - expected_entropy(evidence)).clamp_min(0)


def vacuity(evidence: Tensor) -> Tensor:
    """N / S: 1 without evidence."""
    num_classes = evidence.shape[1]
    return num_classes / (evidence.sum(1) + num_classes)


def dissonance(evidence: Tensor) -> Tensor:
    """sum_c b_c sum_{j != c} b_j (1 - |b_j - b_c| / (b_j + b_c)) / sum_{j != c} b_j, with b = e / S."""
    belief = evidence / (1 + evidence).sum(1, keepdim=True)
    one, other = belief[:, :, None], belief[:, None, :]
    both = one + other
    balance = torch.where(both > 0, 1 - (one - other).abs() / both, 0.0)
    elsewhere = other * (1 - torch.eye(belief.shape[1], dtype=belief.dtype, device=belief.device))
    weight = elsewhere.sum(2)
    return torch.where(weight > 0, belief * (elsewhere * balance).sum(2) / weight, 0.0).sum(1)
