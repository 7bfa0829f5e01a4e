"""What samples count to either model of a pair (spec oracles B-4, B-6), by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.bes.config import PairingConfig
from rayfl.algorithms.bes.exchange import active, mixed, sides

RHO = torch.tensor([0.5, 0.2, 0.0, 0.4], dtype=torch.float64)
FIRST, SECOND = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 3, 3, 1, 1, 0])


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_class_is_exchanged_where_its_giver_has_it() -> None:
    """The first one gives 0 and 3, of which it has no 3; the second gives 1 and 2."""
    gives = torch.tensor([True, False, False, True])
    assert active(RHO, gives, (FIRST, SECOND)).tolist() == [0.5, 0.2, 0.0, 0.0]
    assert active(RHO, ~gives, (FIRST, SECOND)).tolist() == [0.5, 0.2, 0.0, 0.4]
    assert active(RHO, ~gives, (FIRST, FIRST)).tolist() == [0.5, 0.2, 0.0, 0.0]


def test_samples_count_what_is_left_and_what_is_lent() -> None:
    first, second = sides(RHO, (FIRST, SECOND), PairingConfig(), draw())
    assert first.own.tolist() == [0.5, 0.5, 0.8, 1.0]
    assert first.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert first.borrowed.tolist() == pytest.approx([4 / 6 * c for c in (0.2, 0.4, 0.4, 0.2, 0.2, 0.5)])
    assert second.own.tolist() == [0.8, 0.6, 0.6, 0.8, 0.8, 0.5]
    assert second.rows.tolist() == [0, 1, 2], "a sample that counts nothing needs no pass"
    assert second.borrowed.tolist() == pytest.approx([6 / 4 * c for c in (0.5, 0.5, 0.2)])
    unscaled, _ = sides(RHO, (FIRST, SECOND), PairingConfig(scale=False), draw())
    assert unscaled.borrowed.tolist() == [0.2, 0.4, 0.4, 0.2, 0.2, 0.5]


def test_the_mix_is_that_of_the_plan() -> None:
    """B-4: class shares (1 - rho) P_i + rho P_j and the reverse, together P_i + P_j, whatever the sizes."""
    both = sides(RHO, (FIRST, SECOND), PairingConfig(), draw())
    shares = [torch.bincount(some, minlength=4) / len(some) for some in (FIRST, SECOND)]
    found = []
    for side, own, other in ((both[0], FIRST, SECOND), (both[1], SECOND, FIRST)):
        labels = torch.cat([own, other[side.rows]])
        found.append(torch.bincount(labels, side.counts, minlength=4) / len(own))
    for i, j in ((0, 1), (1, 0)):
        assert torch.allclose(found[i], (1 - RHO) * shares[i] + RHO * shares[j], atol=1e-12)
    assert torch.allclose(found[0] + found[1], (shares[0] + shares[1]).double(), atol=1e-7)


def test_without_fraction_the_mean_is_that_of_the_own_batch() -> None:
    """B-6: rho = 0."""
    side, _ = sides(torch.zeros(4, dtype=torch.float64), (FIRST, SECOND), PairingConfig(), draw())
    costs = torch.rand(4, dtype=torch.float64, generator=draw())
    assert len(side.rows) == 0
    assert abs(side.mean(costs) - costs.mean()) < 1e-15


def test_a_weighted_mean() -> None:
    side, _ = sides(RHO, (FIRST, SECOND[:1]), PairingConfig(scale=False), draw())
    costs = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    wanted = (0.5 * 1 + 0.5 * 2 + 0.8 * 3 + 1 * 4 + 0.2 * 5) / (0.5 + 0.5 + 0.8 + 1 + 0.2)
    assert side.mean(costs).item() == pytest.approx(wanted)


def test_swapped_samples_count_to_one_model_alone() -> None:
    """Each sample by lot, with the probability of its class; both sides see the same lots."""
    labels = torch.tensor([0, 1, 2, 3] * 500)
    config = PairingConfig(mode="swap", scale=False)
    first, second = sides(RHO, (labels, labels), config, draw())
    assert set(first.own.tolist()) == {0.0, 1.0}
    assert second.rows.tolist() == (first.own == 0).nonzero()[:, 0].tolist()
    assert set(second.borrowed.tolist()) == {1.0}
    rates = [1 - first.own[labels == n].mean().item() for n in range(4)]
    assert rates == pytest.approx(RHO.tolist(), abs=0.07)
    assert rates[2] == 0
    again, _ = sides(RHO, (labels, labels), config, draw())
    assert torch.equal(again.own, first.own)


def test_a_model_without_samples_has_no_gradient() -> None:
    """All samples swapped away and none got back."""
    rho = torch.tensor([1.0, 0.0], dtype=torch.float64)
    side, _ = sides(rho, (torch.tensor([0]), torch.tensor([1])), PairingConfig(mode="swap"), draw())
    costs = torch.ones(1, dtype=torch.float64, requires_grad=True)
    side.mean(costs).backward()
    assert costs.grad is not None
    assert costs.grad.tolist() == [0.0]


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_features_are_mixed_within_classes(shape: tuple[int, ...]) -> None:
    """The k-th of a class with the partner's k-th, round and round; without partner as they are."""
    fraction = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)

    def values(*each: float) -> Tensor:
        return (
            torch.tensor(each, dtype=torch.float64).reshape(-1, *[1] * (1 + len(shape))).expand(-1, 1, *shape)
        )

    own, labels = values(1, 2, 3, 4, 5), torch.tensor([0, 1, 0, 2, 0])
    other, theirs = values(10, 20, 30), torch.tensor([1, 0, 0])
    found = mixed(fraction, own, other, (labels, theirs))
    wanted: Any = values(0.5 * 1 + 0.5 * 20, 0.75 * 2 + 0.25 * 10, 0.5 * 3 + 0.5 * 30, 4, 0.5 * 5 + 0.5 * 20)
    assert torch.allclose(found, wanted)  # type: ignore[arg-type]
    assert found.shape == own.shape  # type: ignore[union-attr]
