"""Uncertainties against what they divide, their bounds, and values by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.bes.config import EvidenceConfig
from rayfl.algorithms.bes.uncertainty import (
    dissonance,
    expected_entropy,
    mutual_information,
    total_entropy,
    uncertainties,
    vacuity,
)


def some_evidence(num_classes: int) -> Tensor:
    """[300, N] from none to 10,000 each."""
    draw = torch.Generator().manual_seed(0)
    size = torch.rand(300, num_classes, generator=draw, dtype=torch.float64)
    return (1e4**size - 1).clamp_min(0)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_entropy_divides_into_aleatoric_and_epistemic(num_classes: int) -> None:
    evidence = some_evidence(num_classes)
    p = (1 + evidence) / (1 + evidence).sum(1, keepdim=True)
    entropy = torch.distributions.Categorical(p).entropy() / math.log(num_classes)
    assert torch.allclose(total_entropy(evidence), entropy, rtol=0, atol=1e-12)
    parts = expected_entropy(evidence) + mutual_information(evidence)
    assert torch.allclose(parts, entropy, rtol=0, atol=1e-12)


def test_expected_entropy_is_that_of_drawn_probabilities() -> None:
    """50,000 draws, within 5 standard errors."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        alpha = torch.tensor([2.0, 1.0, 5.0], dtype=torch.float64)
        p = torch.distributions.Dirichlet(alpha).sample((50_000,))
    entropies = torch.distributions.Categorical(p).entropy() / math.log(3)
    error = entropies.std().item() / len(entropies) ** 0.5
    found = expected_entropy(alpha[None] - 1).item()
    assert found == pytest.approx(entropies.mean().item(), abs=5 * error)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
@pytest.mark.parametrize("kind", [expected_entropy, mutual_information, vacuity, dissonance])
def test_between_0_and_1(kind: Any, num_classes: int) -> None:
    evidence = some_evidence(num_classes)
    # Of what is beyond all doubt, rounding must not make less than none.
    found = kind(torch.cat([evidence, 1e12 * evidence]))
    assert found.shape == (600,)
    assert found.min() >= 0
    assert found.max() <= 1


def test_without_evidence() -> None:
    """alpha = 1 of ten classes: all vacuous, nothing in conflict; .838 and .162 of the entropy."""
    nothing = torch.zeros(1, 10, dtype=torch.float64)
    assert vacuity(nothing).item() == 1
    assert dissonance(nothing).item() == 0
    # psi(11) - psi(2) = 1/2 + ... + 1/10.
    assert expected_entropy(nothing).item() == pytest.approx(
        sum(1 / n for n in range(2, 11)) / math.log(10), abs=1e-12
    )
    assert expected_entropy(nothing).item() == pytest.approx(0.838, abs=5e-4)
    assert mutual_information(nothing).item() == pytest.approx(0.162, abs=5e-4)


def test_beliefs_and_vacuity_are_all() -> None:
    evidence = some_evidence(10)
    belief = evidence / (1 + evidence).sum(1, keepdim=True)
    assert torch.allclose(belief.sum(1) + vacuity(evidence), torch.ones(300).double(), rtol=0, atol=1e-12)


def test_dissonance_by_hand() -> None:
    """Beliefs of (4, 4, 0) are (4, 4, 0) / 11, in full conflict: 8 / 11. Alone, a belief has none.

    (6, 2, 0): b = (6, 2, 0) / 11, balance of the two 1 - 4 / 8: half of 8 / 11. (4, 2, 2), b / 14: the first
    meets 2 and 2, both of balance 2 / 3; each other one meets 4 (2 / 3) and 2 (1): 7 / 9.
    """
    rows = torch.tensor([[4.0, 4, 0], [5, 0, 0], [6, 2, 0], [4, 2, 2]], dtype=torch.float64)
    last = (4 * 2 / 3 + 2 * 2 * (4 * 2 / 3 + 2) / 6) / 11
    assert dissonance(rows).tolist() == pytest.approx([8 / 11, 0, 4 / 11, last], abs=1e-12)


def test_which_are_asked_for() -> None:
    evidence = some_evidence(4)
    by_default = uncertainties(evidence, EvidenceConfig())
    assert torch.equal(torch.stack(by_default), torch.stack([expected_entropy(evidence), vacuity(evidence)]))
    others = uncertainties(evidence, EvidenceConfig(aleatoric="dissonance", epistemic="mutual_information"))
    assert torch.equal(torch.stack(others), torch.stack([dissonance(evidence), mutual_information(evidence)]))
