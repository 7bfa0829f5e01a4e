"""Whole covariances: taken, sent, pooled to the union's, drawn from, and refused where they are too large."""

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from rayfl.algorithms.hsfp import HSFP
from rayfl.algorithms.sfp import covariances
from rayfl.algorithms.sfp.gaussians import Gaussian, draw, fit, pool
from rayfl.algorithms.sfp.messages import packed, unpacked
from rayfl.errors import UserError
from rayfl.messages import weigh

SHAPE = (3, 2)


def features(count: int, seed: int = 0) -> Tensor:
    """[count, 3, 2] with strong dependence between coordinates."""
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    return (torch.randn(count, 6, generator=rng, dtype=torch.float64) @ mixing + 3 * seed).view(count, *SHAPE)


def taken(some: Tensor) -> Gaussian:
    """Of one class, in two batches."""
    labels = torch.zeros(len(some), dtype=torch.int64)
    found = fit(zip(some.split(5), labels.split(5), strict=True), "full", 1)[0]
    assert found.variance is None
    assert found.triangle is not None
    return found


def whole(triangle: Tensor | None) -> Tensor:
    """The covariance, number by number."""
    assert triangle is not None
    numbers, found = iter(triangle.tolist()), torch.zeros(6, 6, dtype=torch.float64)
    for i in range(6):
        for j in range(i + 1):
            found[i, j] = found[j, i] = next(numbers)
    return found


def covariance(some: Tensor) -> Tensor:
    """By torch."""
    return torch.cov(some.flatten(1).T, correction=0)


def test_it_is_the_covariance() -> None:
    for count in (1, 4, 30):
        found = taken(features(count))
        assert found.count == count
        assert torch.allclose(found.mean, features(count).mean(0), atol=1e-12)
        wanted = covariance(features(count)) if count > 1 else torch.zeros(6, 6, dtype=torch.float64)
        assert torch.allclose(whole(found.triangle), wanted, atol=1e-12)


def test_exact_pooling_is_the_union() -> None:
    """Whatever the counts, a place of one sample among them, and by way of edges as at once."""
    some = [features(7, 1), features(1, 2), features(4, 3)]
    parts, union = [taken(x) for x in some], torch.cat(some)
    (found,) = pool(parts, "exact")
    (through,) = pool([*pool(parts[:2], "exact"), parts[2]], "exact")
    for one in (found, through):
        assert (one.count, one.variance) == (12, None)
        assert torch.allclose(one.mean, union.mean(0), atol=1e-12)
        assert torch.allclose(whole(one.triangle), covariance(union), atol=1e-12)


def test_plain_means_and_mixtures() -> None:
    some = [features(7, 1), features(4, 2)]
    parts = [taken(x) for x in some]
    (plain,) = pool(parts, "paper_eq5")
    assert torch.allclose(plain.mean, (some[0].mean(0) + some[1].mean(0)) / 2, atol=1e-12)
    wanted = (covariance(some[0]) + covariance(some[1])) / 2
    assert torch.allclose(whole(plain.triangle), wanted, atol=1e-12)
    assert pool(parts, "mixture") == parts


def test_draws_have_the_covariance() -> None:
    """Entries within 5 of their deviations, sqrt((s_ii s_jj + s_ij^2) / S); ``eps`` joins the diagonal."""
    one, number = taken(features(50)), 40_000
    for eps in (0.0, 2.0):
        drawn = draw([one], number, torch.Generator().manual_seed(1), eps)
        assert drawn.shape == (number, *SHAPE)
        wanted = whole(one.triangle) + eps * torch.eye(6, dtype=torch.float64)
        variances = wanted.diag()
        deviation = ((torch.outer(variances, variances) + wanted.square()) / number).sqrt()
        assert ((covariance(drawn) - wanted).abs() < 5 * deviation).all()
        off = (drawn.mean(0) - one.mean).abs().flatten()
        assert (off < 5 * (variances / number).sqrt()).all()


def test_draws_stay_where_samples_span_no_more() -> None:
    """Of 3 samples draws lie in the plane through them, of one sample they are it, and in float32, where
    rounding makes values negative, all is finite."""
    some = features(3)
    drawn = (draw([taken(some)], 20, torch.Generator().manual_seed(1), 0.0) - some.mean(0)).flatten(1)
    plane = (some - some.mean(0)).flatten(1)[:2]
    assert torch.linalg.matrix_rank(torch.cat([plane, drawn]), rtol=1e-6) == 2
    one = features(1, 2)
    assert torch.allclose(draw([taken(one)], 2, torch.Generator(), 0.0), one.expand(2, -1, -1), atol=1e-12)
    flat = taken((1e4 * some).float())
    assert flat.mean.dtype == torch.float32
    assert draw([flat], 9, torch.Generator().manual_seed(1), 0.0).isfinite().all()


def test_a_message_weighs_a_triangle_a_class() -> None:
    """4 bytes for each of D means and D (D + 1) / 2 covariances; the same comes out as went in."""
    one, other = (taken(features(n, n).float()) for n in (5, 9))
    sent = packed({0: one, 3: other})
    assert sent is not None
    assert sent.stds is None
    assert weigh(sent) == {"counts": 2 * 2 * 4, "moments": 2 * 4 * (6 + 21)}
    for found, wanted in zip(unpacked(sent).values(), (one, other), strict=True):
        assert found.count == wanted.count
        assert torch.equal(found.mean, wanted.mean)
        assert found.triangle is not None
        assert wanted.triangle is not None
        assert torch.equal(found.triangle, wanted.triangle)


@pytest.mark.parametrize("pooling", ["exact", "mixture", "paper_eq5"])
def test_tiers_train_on_it(pooling: str) -> None:
    """Clients of a tiny model send 64 features, edges 4, and its ledger says so."""
    settings: dict[str, Any] = {"edges": (0, 0, 1, 1), "cut_layers": (1, 2), "covariance": "full"}
    plan = tiny.blueprint("hsfp", model="group", pooling=pooling, **settings)
    federation = tiny.Federation(plan).run(1)
    assert all(value.isfinite().all() for value in federation.weights().values())
    held = [len(set(plan.train.labels[rows].tolist())) for rows in plan.client_rows]
    met = [len(set(plan.train.labels[:10].tolist())), len(set(plan.train.labels[10:].tolist()))]
    traffic = federation.traffic(1)
    assert traffic["client-edge", "up", "moments"] == 8 * sum(held) * (64 + 64 * 65 // 2)
    assert traffic["edge-cloud", "up", "moments"] == 8 * sum(met) * (4 + 10)


def test_more_features_than_are_worth_it_are_refused() -> None:
    """At the client's border or at the edge's, as they leave it: pooled ones are few."""
    covariances.check(1024, "here")
    with pytest.raises(UserError, match=r"up to 1024 features, 1025 leave block 'here': use .*low_rank"):
        covariances.check(1025, "here")
    config = HSFP.Config(covariance="full", cut_layers=(1, 2))
    maps, image = tiny.build("group"), (2, 64, 64)
    with pytest.raises(UserError, match="4096 leave block 'block0'"):
        HSFP.extended(config, maps, image, 0)
    HSFP.extended(dataclasses.replace(config, proto_space="grid", grid=4), maps, image, 0)
    HSFP.extended(dataclasses.replace(config, proto_space="vector"), maps, image, 0)
    sizes = OrderedDict(a=nn.Linear(6, 5), b=nn.Linear(5, 1025), c=nn.Linear(1025, 3))
    with pytest.raises(UserError, match="1025 leave block 'b'"):
        HSFP.extended(config, nn.Sequential(sizes), (6,), 0)  # type: ignore[arg-type]
