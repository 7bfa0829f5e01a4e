"""What the auxiliary model is drawn to: by definition, at its minimum, and that teachers stay as they are."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import DistillationConfig
from rayfl.algorithms.bes.distillation import combined, evidence_losses, relation_loss
from rayfl.errors import UserError

RELATIONS = ("cosine", "sp", "rkd_d")
EVIDENCES = ("dirichlet_kl_unit", "dirichlet_kl", "mean_kl", "evidence_softmax", "evidence_mse")


def features(size: int, seed: int = 0, count: int = 5) -> Tensor:
    """[count, size], as after a ReLU."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, size, generator=draw, dtype=torch.float64)


def evidence(seed: int, largest: float = 50.0) -> Tensor:
    """[3, 4]."""
    return largest * features(4, seed, 3) ** 2


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def relations(rows: list[list[float]], kind: str) -> list[list[float]]:
    """b x b, term by term."""
    count = range(len(rows))
    if kind == "cosine":
        return [[cosine(rows[i], rows[j]) for j in count] for i in count]
    if kind == "sp":
        products = [[sum(x * y for x, y in zip(rows[i], rows[j], strict=True)) for j in count] for i in count]
        return [[value / math.hypot(*row) for value in row] for row in products]
    distances = [[math.dist(rows[i], rows[j]) for j in count] for i in count]
    others = [distances[i][j] for i in count for j in count if i != j]
    return [[value / (sum(others) / len(others)) for value in row] for row in distances]


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("kind", RELATIONS)
def test_relations_by_definition(kind: Any, centre: bool) -> None:
    """Features of 3 and 7 numbers, summed over all pairs of five samples."""
    teacher, student = features(3), features(7, 1) ** 4
    config = DistillationConfig(feature=kind, relation_centre=centre)
    rows = [(each - each.mean(0) if centre else each).tolist() for each in (teacher, student)]
    total = 0.0
    for wanted, found in zip(relations(rows[0], kind), relations(rows[1], kind), strict=True):
        for x, y in zip(wanted, found, strict=True):
            gap = abs(x - y)
            total += (gap**2 / 2 if gap < 1 else gap - 0.5) if kind == "rkd_d" else gap**2
    assert relation_loss(teacher, student, config).item() == pytest.approx(total / 25, abs=1e-12)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("kind", RELATIONS)
def test_turned_and_scaled_features_are_as_good(kind: Any, centre: bool) -> None:
    config = DistillationConfig(feature=kind, relation_centre=centre)
    turn = torch.linalg.qr(features(4, 2, 4) - 0.5)[0]
    assert relation_loss(features(4), 3 * features(4) @ turn, config).item() < 1e-15
    assert relation_loss(features(4), features(4) * torch.tensor([1, 1, 1, 9.0]), config).item() > 1e-4


def test_centred_relations_see_what_a_common_part_hides() -> None:
    """Features near to each other and far from 0, where all cosines are near 1."""
    near = 100 + features(4), 100 + features(4, 1)
    assert relation_loss(*near, DistillationConfig(relation_centre=False)).item() < 1e-6
    assert relation_loss(*near, DistillationConfig()).item() > 0.1


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("count", [1, 13])
def test_features_that_are_alike_have_no_loss_and_finite_gradients(kind: Any, count: int) -> None:
    """A single sample, or dead units. In float32 the mean of 13 times 0.1 is not 0.1, that of 0.5 is."""
    alike = torch.full((count, 4), 0.1, requires_grad=True)
    loss = relation_loss(torch.full((count, 2), 0.5), alike, DistillationConfig(feature=kind))
    loss.backward()
    assert loss.item() < 1e-12
    assert alike.grad is not None
    assert alike.grad.isfinite().all()


@pytest.mark.parametrize("kind", RELATIONS)
def test_relation_gradients_reach_the_student_alone(kind: Any) -> None:
    config = DistillationConfig(feature=kind)
    teacher, student = features(3).requires_grad_(), features(4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: relation_loss(teacher, x, config), student)
    relation_loss(teacher, student, config).backward()
    assert teacher.grad is None


@pytest.mark.parametrize("kind", EVIDENCES)
def test_equal_evidence_is_the_minimum(kind: Any) -> None:
    config = DistillationConfig(evidence=kind)
    teacher, other = evidence(0).requires_grad_(), evidence(1)
    student = evidence(0).requires_grad_()
    at_it = evidence_losses(teacher, student, config)
    assert at_it.shape == (3,)
    assert at_it.abs().max() < 1e-12
    at_it.sum().backward()
    assert student.grad is not None
    assert student.grad.abs().max() < 1e-12
    assert evidence_losses(teacher, other, config).min() > 0
    assert torch.autograd.gradcheck(lambda x: evidence_losses(teacher, x, config), other.requires_grad_())
    evidence_losses(teacher, other, config).sum().backward()
    assert teacher.grad is None


def test_evidence_losses_by_definition() -> None:
    """By torch's own divergences, at tau = 2."""
    teacher, student = evidence(0), evidence(1)
    dirichlet = [torch.distributions.Dirichlet(1 + each / 2) for each in (teacher, student)]
    kl = torch.distributions.kl_divergence(*dirichlet)

    def softmax_kl(wanted: Tensor, found: Tensor) -> Tensor:
        return F.kl_div((found / 2).log_softmax(1), (wanted / 2).softmax(1), reduction="none").sum(1)

    expected = {
        "dirichlet_kl": kl,
        "dirichlet_kl_unit": kl / (4 + teacher.sum(1) / 2),
        "mean_kl": 4 * softmax_kl((1 + teacher / 2).log(), (1 + student / 2).log()),
        "evidence_softmax": 4 * softmax_kl(teacher, student),
        "evidence_mse": ((teacher - student) ** 2).mean(1) / 4,
    }
    for kind, values in expected.items():
        found = evidence_losses(teacher, student, DistillationConfig(evidence=kind, tau=2))  # type: ignore[arg-type]
        assert torch.allclose(found, values, rtol=0, atol=1e-9), kind


@pytest.mark.parametrize("kind", ["dirichlet_kl_unit", "dirichlet_kl", "evidence_mse"])
def test_strength_is_learnt_not_the_mean_alone(kind: Any) -> None:
    """Three times alpha has the same mean, evidence and 3 more of each class the same softmax.

    At temperature 1 the KL of means has nothing against the one, the KL of softmaxes against the other.
    """
    teacher = evidence(0)
    for blind, student in (("mean_kl", 3 * (1 + teacher) - 1), ("evidence_softmax", teacher + 3)):
        assert evidence_losses(teacher, student, DistillationConfig(evidence=kind, tau=1)).min() > 1e-3
        unseen = DistillationConfig(evidence=blind, tau=1)  # type: ignore[arg-type]
        assert evidence_losses(teacher, student, unseen).abs().max() < 1e-12


def test_sure_evidence_in_float32_is_compared_exactly() -> None:
    """Of 100 classes at 10,000 each: lgamma of the strength is 2e6."""
    teacher, student = torch.full((1, 100), 1e4), torch.full((1, 100), 9e3)
    config = DistillationConfig(evidence="dirichlet_kl")
    found = evidence_losses(teacher, student, config)
    assert found.item() == pytest.approx(
        evidence_losses(teacher.double(), student.double(), config).item(), abs=1e-9
    )
    # Almost Gaussians of 99 dimensions with variances in the inverse ratio of strengths.
    assert found.item() == pytest.approx(99 / 2 * (0.9 - 1 - math.log(0.9)), rel=0.01)


def test_combined() -> None:
    parts = tuple(torch.tensor(value) for value in (10.0, 1.0, 100.0))
    assert combined(*parts, DistillationConfig()).item() == pytest.approx(10 + 0.2 + 30)
    convex = DistillationConfig(combine="convex", lambda_c=0.25, lambda_g=0.25)
    assert combined(*parts, convex).item() == pytest.approx(5 + 0.25 + 25)
    with pytest.raises(UserError, match=r"at most 1, they are 0.6 and 0.5: lower them"):
        DistillationConfig(combine="convex", lambda_c=0.6, lambda_g=0.5)
    DistillationConfig(lambda_c=0.6, lambda_g=0.5)
