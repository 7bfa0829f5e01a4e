"""Evidence and its losses against integrals over the Dirichlet, by which they are defined."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfl.algorithms.bes.config import EvidenceConfig
from rayfl.algorithms.bes.evidence import dirichlet_kl, evidence, losses

LABELS = torch.tensor([0, 2, 1])


def logits(seed: int = 0) -> Tensor:
    """[3, 4] float64."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bare(loss: Any, **options: Any) -> EvidenceConfig:
    """Without the KL term."""
    return EvidenceConfig(loss=loss, lambda_kl=0.0, **options)


def slope(value: float, pull: float, config: EvidenceConfig) -> float:
    """The derivative of ``pull`` times evidence at a single logit."""
    logit = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(pull * evidence(logit, config).sum(), logit)[0].item()


@pytest.mark.parametrize(
    ("act", "values"),
    [("exp", [math.exp(-2), 1, math.exp(3)]), ("relu", [0, 0, 3]),
     ("softplus", [math.log1p(math.exp(x)) for x in (-2, 0, 3)])],
)  # fmt: skip
def test_activation(act: Any, values: list[float]) -> None:
    found = evidence(torch.tensor([[-2.0, 0.0, 3.0]]), EvidenceConfig(act=act))
    assert found.tolist()[0] == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize(
    ("act", "limit", "half"),
    [("exp", 3.0, math.log(1.5)), ("softplus", 3.0, math.log(math.expm1(1.5))), ("relu", 3.0, 1.5),
     ("exp", 1e4, math.log(5e3)), ("softplus", 1e4, 5e3), ("relu", 1e4, 5e3)],
)  # fmt: skip
def test_cap_holds_evidence_but_not_what_would_lower_it(act: Any, limit: float, half: float) -> None:
    config = EvidenceConfig(act=act, max=limit)
    found = evidence(torch.tensor([[half, 2e4, math.inf]], dtype=torch.float64), config)
    assert found.tolist()[0] == pytest.approx([limit / 2, limit, limit])
    # Beyond the cap a loss that evidence would lower has no say; one that it raises has.
    assert slope(2e4, -1.0, config) == 0
    assert slope(2e4, 1.0, config) > 0.9
    assert slope(half, -1.0, config) == -slope(half, 1.0, config) < 0


@pytest.mark.parametrize("loss", ["digamma", "mse"])
def test_expectations_under_the_dirichlet(loss: Any) -> None:
    """Of cross-entropy and of the squared error: 100,000 draws, within 5 standard errors."""
    alpha = 1 + evidence(logits(), EvidenceConfig())
    found = losses(logits(), LABELS, 1, bare(loss))
    drawn = torch.from_numpy(np.stack([np.random.default_rng(0).dirichlet(row, 100_000) for row in alpha]))
    for p, label, value in zip(drawn, LABELS.tolist(), found.tolist(), strict=True):
        truth = torch.eye(4, dtype=torch.float64)[label]
        costs = -p[:, label].log() if loss == "digamma" else (truth - p).square().sum(1)
        assert value == pytest.approx(costs.mean().item(), abs=5 * costs.std().item() / len(costs) ** 0.5)


def test_log_loss_is_the_marginal_likelihood() -> None:
    """-ln of the expected probability alpha_y / S, by hand: evidence (3, 0, 1) gives 4 / 7, 1 / 7, 2 / 7."""
    of_one = torch.tensor([[3.0, 0.0, 1.0]], dtype=torch.float64).expand(3, 3)
    found = losses(of_one, torch.tensor([0, 1, 2]), 1, bare("log", act="relu"))
    assert found.tolist() == pytest.approx([math.log(7 / 4), math.log(7), math.log(7 / 2)], abs=1e-12)


def beta_density(a: float, b: float, x: np.ndarray) -> np.ndarray:
    log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return np.exp(log_norm + (a - 1) * np.log(x) + (b - 1) * np.log1p(-x))


@pytest.mark.parametrize(("a", "b"), [((2.0, 3.0), (1.0, 1.0)), ((5.5, 2.0), (1.5, 4.0))])
def test_kl_by_integration(a: tuple[float, float], b: tuple[float, float]) -> None:
    """Two classes: the Dirichlet is a Beta density on [0, 1]."""
    x, width = np.polynomial.legendre.leggauss(400)
    x, width = (x + 1) / 2, width / 2
    p, q = beta_density(*a, x), beta_density(*b, x)
    found = dirichlet_kl(*(torch.tensor([each], dtype=torch.float64) for each in (a, b)))
    assert found.item() == pytest.approx(float(width @ (p * np.log(p / q))), abs=1e-7)


def test_kl_is_no_less_than_that_of_equals() -> None:
    draw = torch.Generator().manual_seed(0)
    alpha, beta = 1 + 9 * torch.rand(2, 500, 6, generator=draw, dtype=torch.float64)
    assert dirichlet_kl(alpha, alpha).abs().max() < 1e-12
    assert dirichlet_kl(alpha, beta).min() > 0


def test_kl_term_takes_evidence_from_wrong_classes_alone() -> None:
    """Evidence (7, 2, 0) of class 0: lambda_t times the KL of parameters (1, 3, 1) from (1, 1, 1).

    That is ln G(5) - ln G(3) - ln G(3) + 2 (psi(3) - psi(5)) = ln 6 - 2 (1/3 + 1/4).
    """
    sample, label = torch.tensor([[7.0, 2.0, 0.0]]), torch.tensor([0])
    term = math.log(6) - 7 / 6
    alone = losses(sample, label, 1, bare("digamma", act="relu")).item()
    for t, anneal, share in ((1, 10, 0.1), (5, 10, 0.5), (10, 10, 1.0), (99, 10, 1.0), (1, 0, 1.0)):
        config = EvidenceConfig(act="relu", lambda_kl=0.3, kl_anneal=anneal)
        assert losses(sample, label, t, config).item() - alone == pytest.approx(0.3 * share * term, abs=1e-12)


@pytest.mark.parametrize("loss", ["digamma", "mse", "log"])
@pytest.mark.parametrize("act", ["exp", "softplus"])
def test_gradients_by_finite_differences(loss: Any, act: Any) -> None:
    config = EvidenceConfig(loss=loss, act=act, lambda_kl=0.5)
    inputs = logits().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses(z, LABELS, 20, config), inputs)
    beta = 1 + torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alpha = (1 + inputs.detach().exp()).requires_grad_()
    assert torch.autograd.gradcheck(dirichlet_kl, (alpha, beta.requires_grad_()))


@pytest.mark.parametrize("loss", ["digamma", "mse", "log"])
def test_evidence_for_the_true_class_lowers_the_loss(loss: Any) -> None:
    inputs = logits().requires_grad_()
    slopes = torch.autograd.grad(losses(inputs, LABELS, 1, bare(loss)).sum(), inputs)[0]
    own = torch.nn.functional.one_hot(LABELS, 4).bool()
    assert (slopes[own] < 0).all()


def test_a_sample_without_evidence_learns_by_the_correction_alone() -> None:
    dead = torch.full((1, 4), -1.0, dtype=torch.float64, requires_grad=True)
    for correct, expected in ((False, 0.0), (True, -1.0)):
        config = bare("digamma", act="relu", correct_evidence=correct)
        slopes = torch.autograd.grad(losses(dead, torch.tensor([2]), 1, config).sum(), dead)[0]
        assert slopes.tolist() == [[0.0, 0.0, expected, 0.0]]


def test_the_correction_fades_with_evidence() -> None:
    """It adds minus vacuity, here 4 / 8, times the true class's logit; vacuity counts as a constant."""
    found = []
    for correct in (True, False):
        some = torch.tensor([[3.0, 0.5, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
        config = bare("digamma", act="relu", correct_evidence=correct)
        loss = losses(some, torch.tensor([2]), 1, config).sum()
        found.append((loss.item(), torch.autograd.grad(loss, some)[0]))
    (corrected, its_slopes), (plain, slopes) = found
    assert corrected - plain == pytest.approx(-4 / 8 * 0.5, abs=1e-12)
    assert (its_slopes - slopes).tolist()[0] == pytest.approx([0, 0, -4 / 8, 0], abs=1e-12)


def test_float32_logits_lose_nothing_on_the_way() -> None:
    """100 classes sure and wrong: lgamma(1e6) is 1.3e7, where float32 is a whole number off."""
    sure = torch.full((1, 100), 20.0, requires_grad=True)
    found = losses(sure, torch.tensor([3]), 10, EvidenceConfig(lambda_kl=1.0))
    exact = losses(sure.double(), torch.tensor([3]), 10, EvidenceConfig(lambda_kl=1.0))
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(exact.item(), abs=1e-9)
    found.sum().backward()
    assert sure.grad is not None
    assert sure.grad.dtype == torch.float32
    assert sure.grad.isfinite().all()
    assert (sure.grad[0, :3] > 0).all()
    half = torch.full((1, 100), 20.0, dtype=torch.bfloat16)
    assert losses(half, torch.tensor([3]), 10, EvidenceConfig(lambda_kl=1.0)).item() == found.item()
