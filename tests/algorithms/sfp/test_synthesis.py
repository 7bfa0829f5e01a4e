"""From messages to drawn features."""

import dataclasses

import pytest
import torch

from rayfl.algorithms.hsfp import HSFP
from rayfl.algorithms.sfp.gaussians import Gaussian
from rayfl.algorithms.sfp.messages import ClassMoments, packed, unpacked
from rayfl.algorithms.sfp.spatial import view
from rayfl.algorithms.sfp.synthesis import counts, shuffled, sources, synthesise
from rayfl.messages import weigh

CONFIG = HSFP.Config(name="hsfp", syn_per_class=5)


def message(*classes: int, count: int = 2, at: float = 0.0) -> ClassMoments:
    """Of 3x2 features at one place, unspread."""
    found = packed({c: Gaussian(count, torch.full((3, 2), at + c), torch.zeros(3, 2)) for c in classes})
    assert found is not None
    return found


def rng() -> torch.Generator:
    """A stream."""
    return torch.Generator().manual_seed(0)


def test_messages_keep_what_was_packed_and_weigh_what_they_hold() -> None:
    """J classes of S numbers: 4 (2 J S) bytes, and 8 J for ids and counts; without variances half of it. A
    class's factors cost their own number of vectors."""
    one = Gaussian(7, torch.rand(3, 2), torch.rand(3, 2), torch.rand(2, 3, 2))
    other = Gaussian(1, torch.rand(3, 2), torch.rand(3, 2), torch.rand(0, 3, 2))
    sent = packed({1: one, 4: other})
    assert sent is not None
    assert weigh(sent) == {"counts": 2 * 3 * 4, "moments": 4 * (2 * 2 * 6 + 2 * 6)}
    back = unpacked(sent)
    assert list(back) == [1, 4]
    for found, wanted in ((back[1], one), (back[4], other)):
        assert found.count == wanted.count
        assert torch.equal(found.mean, wanted.mean)
        assert found.variance is not None
        assert found.factors is not None
        assert wanted.variance is not None
        assert wanted.factors is not None
        assert torch.allclose(found.variance, wanted.variance)
        assert torch.equal(found.factors, wanted.factors)
    diag = packed({1: dataclasses.replace(one, factors=None)})
    alone = packed({1: Gaussian(7, torch.rand(3, 2), None)})
    assert diag is not None
    assert alone is not None
    assert weigh(diag)["moments"] == 2 * weigh(alone)["moments"]
    assert weigh(diag)["counts"] == weigh(alone)["counts"] == 8
    assert packed({}) is None


def test_classes_are_pooled_over_those_who_have_them() -> None:
    found = sources({3: message(0, 2), 1: message(2, count=6, at=1.0), 7: None}, CONFIG)
    assert list(found) == [0, 2]
    assert counts(found) == {0: 2, 2: 8}
    assert found[2][0].mean[0, 0].item() == pytest.approx(2.75)
    mixed = sources({3: message(0, 2), 1: message(2)}, dataclasses.replace(CONFIG, pooling="mixture"))
    assert [len(parts) for parts in mixed.values()] == [1, 2]


def test_as_many_of_each_or_in_proportion() -> None:
    found = sources({0: message(0, count=1), 1: message(1, count=9)}, CONFIG)
    features, labels = synthesise(found, CONFIG, rng())
    assert features.shape == (10, 3, 2)
    assert labels.tolist() == [0] * 5 + [1] * 5
    assert (features[:, 0, 0].round() == labels).all()
    empirical = dataclasses.replace(CONFIG, syn_prior="empirical")
    assert synthesise(found, empirical, rng())[1].bincount().tolist() == [1, 9]


def test_clipped_draws_are_what_a_relu_could_give() -> None:
    wide = packed({0: Gaussian(2, torch.zeros(4), torch.ones(4))})
    found = sources({0: wide}, CONFIG)
    assert synthesise(found, CONFIG, rng())[0].min() < 0
    assert synthesise(found, dataclasses.replace(CONFIG, clip_nonneg=True), rng())[0].min() == 0


def test_every_row_once_a_pass_but_a_lone_last_one() -> None:
    passes = list(shuffled(8, 3, 2, rng()))
    assert [len(rows) for rows in passes] == [3, 3, 2] * 2
    assert sorted(torch.cat(passes[:3]).tolist()) == list(range(8))
    assert not torch.equal(torch.cat(passes[:3]), torch.cat(passes[3:]))
    assert [len(rows) for rows in shuffled(7, 3, 1, rng())] == [3, 3]
    assert [len(rows) for rows in shuffled(1, 3, 1, rng())] == [1]


def test_views_of_maps() -> None:
    """Constant maps stay; others move; mirrored only where asked; vectors stay."""
    constant = torch.full((64, 2, 6, 6), 3.0)
    assert torch.allclose(view(constant, rng(), flips=True), constant, atol=1e-5)
    slope = torch.arange(6.0).expand(64, 1, 6, 6).contiguous()
    rises = [
        (seen[..., -1] - seen[..., 0]).mean((1, 2)) for seen in (view(slope, rng(), f) for f in (False, True))
    ]
    assert (rises[0] > 0).all()
    assert 16 < (rises[1] < 0).sum() < 48
    assert not torch.equal(view(slope, rng(), False), slope)
    vectors = torch.rand(3, 5)
    assert torch.equal(view(vectors, rng(), True), vectors)
