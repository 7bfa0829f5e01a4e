"""SupCon against a double loop over its formula, and where it has nothing to say."""

import math

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.sfp.contrast import directions, infonce, supcon


def features(count: int, seed: int = 0) -> Tensor:
    """[count, 5] float64."""
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(z: Tensor, labels: list[int], tau: float) -> float:
    """The formula, term by term."""
    terms = []
    for i in range(len(z)):
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        below = sum(math.exp((z[i] @ z[a]).item() / tau) for a in range(len(z)) if a != i)
        if positives:
            logs = [math.log(math.exp((z[i] @ z[p]).item() / tau) / below) for p in positives]
            terms.append(-sum(logs) / len(positives))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    "labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 2], [3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 4]]
)
def test_by_definition(labels: list[int], tau: float) -> None:
    z = directions(features(6))
    assert supcon(z, torch.tensor(labels), tau).item() == pytest.approx(
        by_definition(z, labels, tau), abs=1e-12
    )


def test_order_does_not_matter() -> None:
    z, labels = directions(features(8)), torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
    order = torch.tensor([5, 3, 0, 7, 1, 6, 2, 4])
    assert supcon(z[order], labels[order], 0.5).item() == pytest.approx(
        supcon(z, labels, 0.5).item(), abs=1e-12
    )


def test_closed_form() -> None:
    """Two equal views of each of K orthogonal samples: -log(e^(1/tau) / (e^(1/tau) + 2K - 2))."""
    z = torch.eye(4, dtype=torch.float64).repeat(2, 1)
    wanted = -math.log(math.exp(2) / (math.exp(2) + 6))
    assert supcon(z, torch.arange(4).repeat(2), 0.5).item() == pytest.approx(wanted, abs=1e-12)
    assert infonce(z, 0.5).item() == pytest.approx(wanted, abs=1e-12)


def test_views_alone_know_no_classes() -> None:
    z = directions(features(6))
    assert infonce(z, 0.5).item() == pytest.approx(by_definition(z, [0, 1, 2] * 2, 0.5), abs=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_without_positives_there_is_no_loss(count: int) -> None:
    z = features(count).requires_grad_()
    loss = supcon(directions(z), torch.arange(count), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None
    assert z.grad.abs().max() == 0


def test_features_of_zero_have_a_finite_gradient() -> None:
    """Dead units after pooling; a low temperature, where exponents reach 1000."""
    for start in (torch.zeros(4, 5), features(4).float() * 100):
        z = start.requires_grad_()
        supcon(directions(z), torch.tensor([0, 0, 1, 1]), 1e-3).backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()


def test_maps_are_pooled_or_flattened() -> None:
    maps = torch.arange(16.0).view(2, 2, 2, 2)
    assert torch.allclose(directions(maps), torch.nn.functional.normalize(maps.mean((2, 3)), dim=1))
    assert directions(maps, "flat").shape == (2, 8)
    assert torch.allclose(directions(maps, "flat").norm(dim=1), torch.ones(2))
