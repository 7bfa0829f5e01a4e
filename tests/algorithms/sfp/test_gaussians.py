"""What stands for a class: fitted, pooled and drawn from."""

import math

import pytest
import torch

from rayfl.algorithms.sfp.gaussians import Gaussian, draw, fit, pool


def features(count: int, size: int = 6, seed: int = 0) -> torch.Tensor:
    """[count, size] with strong dependence between coordinates."""
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=rng, dtype=torch.float64)
    return torch.randn(count, size, generator=rng, dtype=torch.float64) @ mixing + 3


def generator(seed: int = 0) -> torch.Generator:
    """A stream."""
    return torch.Generator().manual_seed(seed)


def test_exact_pooling_is_the_union() -> None:
    some, others = features(7), features(4, seed=1) + 2
    labels = torch.zeros(11, dtype=torch.int64)
    whole = fit([(torch.cat([some, others]), labels)], "diag", 1)[0]
    parts = [fit([(x, labels[: len(x)])], "diag", 1)[0] for x in (some, others)]
    (found,) = pool(parts, "exact")
    assert found.count == 11
    assert torch.allclose(found.mean, whole.mean, atol=1e-10, rtol=0)
    assert whole.variance is not None
    assert found.variance is not None
    assert torch.allclose(found.variance, whole.variance, atol=1e-10, rtol=0)


def test_plain_means_ignore_counts_and_lose_the_spread_between_places() -> None:
    """With equal counts the mean is right and the variance no larger; equal to ``exact`` with equal means."""
    some, others = features(6), features(6, seed=1) + 2
    labels = torch.zeros(6, dtype=torch.int64)
    parts = [fit([(x, labels)], "diag", 1)[0] for x in (some, others)]
    (exact,), (plain,) = pool(parts, "exact"), pool(parts, "paper_eq5")
    assert exact.variance is not None
    assert plain.variance is not None
    assert torch.allclose(plain.mean, exact.mean, atol=1e-12, rtol=0)
    assert (plain.variance <= exact.variance + 1e-12).all()
    assert (exact.variance - plain.variance).max() > 0.1
    centred = [Gaussian(p.count, torch.zeros_like(p.mean), p.variance) for p in parts]
    (exact,), (plain,) = pool(centred, "exact"), pool(centred, "paper_eq5")
    assert exact.variance is not None
    assert plain.variance is not None
    assert torch.allclose(plain.variance, exact.variance, atol=1e-12, rtol=0)
    unequal = [Gaussian(1, torch.zeros(2), torch.ones(2)), Gaussian(3, torch.ones(2), torch.ones(2))]
    assert pool(unequal, "paper_eq5")[0].mean.tolist() == [0.5, 0.5]
    assert pool(unequal, "exact")[0].mean.tolist() == [0.75, 0.75]


def test_draws_have_the_moments() -> None:
    """The mean within 5 sigma / sqrt(S); the ratio of variances within 5 of its deviations sqrt(2 / S)."""
    one = Gaussian(9, torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25]))
    assert one.variance is not None
    for number in (100, 10_000):
        drawn = draw([one], number, generator(), 0.0)
        off = (drawn.mean(0) - one.mean).abs() / (one.variance / number).sqrt()
        assert off.max() < 5
        assert ((drawn.var(0) / one.variance - 1).abs() < 5 * math.sqrt(2 / number)).all()


def test_nothing_spread_is_the_mean_and_draws_repeat() -> None:
    one = Gaussian(1, torch.tensor([1.0, -2.0]), torch.zeros(2))
    assert torch.equal(draw([one], 3, generator(), 0.0), one.mean.expand(3, 2))
    wide = Gaussian(1, torch.zeros(2), torch.ones(2))
    assert torch.equal(draw([wide], 3, generator(1), 0.0), draw([wide], 3, generator(1), 0.0))
    assert not torch.equal(draw([wide], 3, generator(1), 0.0), draw([wide], 3, generator(2), 0.0))


def test_without_variances_draws_are_points_a_hundredth_wide() -> None:
    """eps_mu = 1e-4."""
    (one,) = pool([Gaussian(2, torch.zeros(3), None), Gaussian(1, torch.full((3,), 3.0), None)], "exact")
    assert one.variance is None
    drawn = draw([one], 4000, generator(), 1.0)
    assert torch.allclose(drawn.mean(0), torch.ones(3), atol=1e-3)
    assert torch.allclose(drawn.std(0), torch.full((3,), 0.01), rtol=0.1)


def test_factors_carry_the_main_directions() -> None:
    """With all variance in as many directions as there are factors, nothing is left on the diagonal; draws
    then have the whole covariance. Variances are kept whatever the rank."""
    base = features(40, 6)
    planar = base[:, :2] @ torch.randn(2, 6, generator=generator(3), dtype=torch.float64)
    labels = torch.zeros(40, dtype=torch.int64)
    one = fit([(planar, labels)], "low_rank", 2)[0]
    assert one.factors is not None
    assert one.variance is not None
    assert one.factors.shape == (2, 6)
    assert one.variance.abs().max() < 1e-9
    covariance = torch.cov(planar.T, correction=0)
    assert torch.allclose(one.factors.T @ one.factors, covariance, atol=1e-9)
    drawn = draw([one], 20_000, generator(), 0.0)
    assert torch.allclose(torch.cov(drawn.T), covariance, atol=0.05 * covariance.abs().max().item())
    few = fit([(base, labels)], "low_rank", 1)[0]
    assert few.factors is not None
    assert few.variance is not None
    assert torch.allclose(few.variance + few.factors.square().sum(0), base.var(0, correction=0), atol=1e-9)


@pytest.mark.parametrize(("count", "kept"), [(1, 0), (3, 0), (4, 1), (8, 2), (100, 4)])
def test_factors_are_at_most_a_quarter_of_the_samples(count: int, kept: int) -> None:
    """More would span the samples themselves."""
    one = fit([(features(count), torch.zeros(count, dtype=torch.int64))], "low_rank", 4)[0]
    assert one.factors is not None
    assert len(one.factors) == kept


def test_a_mixture_draws_from_its_parts_by_their_samples() -> None:
    parts = [Gaussian(3, torch.zeros(1), torch.zeros(1)), Gaussian(1, torch.ones(1), torch.zeros(1))]
    assert pool(parts, "mixture") == parts
    drawn = draw(parts, 8000, generator(), 0.0)
    assert set(drawn.flatten().tolist()) == {0.0, 1.0}
    assert abs(drawn.mean().item() - 0.25) < 0.03
