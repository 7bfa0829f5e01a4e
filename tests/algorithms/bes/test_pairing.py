"""Who is biased and who pairs, against a plain search, and that it depends on nothing else."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.bes.config import PairingConfig
from rayfl.algorithms.bes.mixing import Floats, exchanged, fractions, joint_bias
from rayfl.algorithms.bes.pairing import Matcher, Pair, biased, calibrated, label_bias

K, N = 9, 5


def federation(seed: int, alpha: float = 0.3) -> tuple[dict[int, Floats], dict[int, float]]:
    """Deviations and weights of K clients with ids 0, 10, ..."""
    rng = np.random.default_rng(seed)
    mixes, sizes, w = rng.dirichlet(np.full(N, alpha), K), rng.random(K), rng.dirichlet(np.full(K, 2.0))
    d = mixes - sizes @ mixes / sizes.sum()
    return {10 * k: d[k] for k in range(K)}, {10 * k: float(w[k]) for k in range(K)}


def gain(d_i: Floats, d_j: Floats, w_i: float, w_j: float, config: PairingConfig) -> float:
    w = np.array([w_i]), np.array([w_j])
    after = exchanged(d_i, d_j, fractions(d_i, d_j, *w, config))
    return float(joint_bias(d_i, d_j, *w) - joint_bias(*after, *w))


def pairs_of(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(pair.first, pair.second) for pair in pairs]


@pytest.mark.parametrize("mode", ["classwise", "scalar"])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_by_a_plain_search(seed: int, mode: Any) -> None:
    """The best pair of those left, again and again."""
    d, w = federation(seed)
    config = PairingConfig(rho_mode=mode)
    left, expected = set(d), []
    while True:
        gains = {
            (i, j): gain(d[i], d[j], w[i], w[j], config) for i, j in itertools.combinations(sorted(left), 2)
        }
        best = max(gains, key=lambda pair: gains[pair], default=None)
        if best is None or gains[best] <= config.g_min:
            break
        left -= set(best)
        expected.append((*best, gains[best]))
    found = Matcher(d, w, config).pairs(d)
    assert pairs_of(found) == [pair[:2] for pair in expected]
    assert [pair.gain for pair in found] == pytest.approx([pair[2] for pair in expected], abs=1e-12)
    assert len(found) >= 2
    for pair in found:
        w_i, w_j = np.array([w[pair.first]]), np.array([w[pair.second]])
        assert np.array_equal(pair.rho, fractions(d[pair.first], d[pair.second], w_i, w_j, config))


@pytest.mark.parametrize("seed", range(5))
def test_ids_are_names_alone(seed: int) -> None:
    """Clients in another order, or with other ids: the same pairs of them, with the same bits."""
    d, w = federation(seed)
    found = Matcher(d, w, PairingConfig()).pairs(d)
    backwards = Matcher(dict(reversed(d.items())), w, PairingConfig()).pairs(list(reversed(d)))
    assert pairs_of(backwards) == pairs_of(found)
    ids = dict(zip(d, np.random.default_rng(seed).permutation(K).tolist(), strict=True))
    renamed = Matcher(
        {ids[k]: one for k, one in d.items()}, {ids[k]: one for k, one in w.items()}, PairingConfig()
    ).pairs(list(ids.values()))
    for before, after in zip(found, renamed, strict=True):
        assert {after.first, after.second} == {ids[before.first], ids[before.second]}
        assert after.gain == before.gain
        assert np.array_equal(after.rho, before.rho)


def test_equal_gains_go_to_lower_ids() -> None:
    """Two of each kind: 3 and 4 pair before 3 and 9 could, and 7 has 9 left."""
    up, down = np.array([0.4, -0.4]), np.array([-0.4, 0.4])
    d, w = {9: down, 7: up, 4: down, 3: up}, dict.fromkeys((3, 4, 7, 9), 0.25)
    assert pairs_of(Matcher(d, w, PairingConfig()).pairs(d)) == [(3, 4), (7, 9)]


@pytest.mark.parametrize("seed", range(5))
def test_only_those_present_pair_and_once(seed: int) -> None:
    d, w = federation(seed)
    matcher = Matcher(d, w, PairingConfig())
    everybody = matcher.pairs(d)
    paired = [client for pair in everybody for client in (pair.first, pair.second)]
    assert len(set(paired)) == len(paired)
    present = set(d) - {everybody[0].first}
    found = pairs_of(matcher.pairs({*present, 999}))
    assert found == pairs_of(
        Matcher({k: d[k] for k in present}, {k: w[k] for k in present}, PairingConfig()).pairs(present)
    )
    assert matcher.pairs([]) == []
    assert matcher.pairs([paired[0]]) == []


def test_nobody_or_somebody_alone() -> None:
    one = np.array([0.5, -0.5])
    for d in ({}, {3: one}):
        assert Matcher(d, dict.fromkeys(d, 1.0), PairingConfig()).pairs(d) == []


def test_gain_is_0_where_no_class_is_complementary() -> None:
    """Elsewhere it is more; with nothing to exchange it is 0 too."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        d_i, d_j = (row - row.mean() for row in rng.random((2, 3)) * rng.integers(0, 2, (2, 3)))
        w_i, w_j = rng.random(2)
        found = gain(d_i, d_j, w_i, w_j, PairingConfig())
        if (d_i * d_j < 0).any():
            assert found > 0
        else:
            assert found == 0
        assert gain(d_i, d_j, w_i, w_j, PairingConfig(rho_max=0)) == 0


def test_gain_of_uniform_weights() -> None:
    """(b_i + b_j - ||d_i + d_j||_1) / K without a cap."""
    d, _ = federation(0)
    w = dict.fromkeys(d, 1 / K)
    for pair in Matcher(d, w, PairingConfig(rho_max=1)).pairs(d):
        d_i, d_j = d[pair.first], d[pair.second]
        assert pair.gain == pytest.approx(
            (np.abs(d_i).sum() + np.abs(d_j).sum() - np.abs(d_i + d_j).sum()) / K, abs=1e-12
        )


@pytest.mark.parametrize("cap", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["classwise", "scalar"])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_lowers_the_label_bias_by_what_pairs_gain(seed: int, mode: Any, cap: float) -> None:
    d, w = federation(seed)
    found = Matcher(d, w, PairingConfig(rho_mode=mode, rho_max=cap)).pairs(d)
    assert (len(found) > 0) == (cap > 0)
    after = calibrated(d, found)
    before, lower = label_bias(d, w), label_bias(after, w)
    assert lower <= before
    assert before - lower == pytest.approx(sum(pair.gain for pair in found), abs=1e-12)
    assert before == pytest.approx(sum(w[k] * np.abs(d[k]).sum() for k in d), abs=1e-12)
    assert np.allclose(sum(after.values()), sum(d.values()), rtol=0, atol=1e-12)
    assert list(after) == list(d)


def test_thresholds_by_hand() -> None:
    """Distances .1, .3 and 1.1 (mean .5) of 3 classes. Noise of 8 labels: 1.5 sqrt(4 / (8 pi)) = .598."""
    d = {
        0: np.array([0.05, -0.05, 0.0]),
        5: np.array([0.15, -0.1, -0.05]),
        2: np.array([0.55, -0.5, -0.05]),
    }
    sizes = dict.fromkeys(d, 8.0)

    def found(**options: Any) -> list[int]:
        return biased(d, sizes, PairingConfig(**options))

    assert found(bias_threshold="fixed") == [2, 5]
    assert found(bias_threshold="fixed", zeta=0.5) == [2]
    assert found(bias_threshold="mean") == [2]
    assert found() == [2]
    assert found(noise=0.29 / math.sqrt(4 / (8 * math.pi))) == [2, 5]
    assert found(noise=0.31 / math.sqrt(4 / (8 * math.pi))) == [2]
    sizes[5] = 1000.0
    assert found() == [2, 5]
    assert biased({}, {}, PairingConfig()) == []


def test_equal_clients_are_not_above_their_mean() -> None:
    d = dict.fromkeys(range(7), np.array([0.1, 0.2, -0.3]) / 3)
    assert biased(d, dict.fromkeys(d, 8.0), PairingConfig(bias_threshold="mean")) == []


@pytest.mark.parametrize("num_classes", [10, 100])
def test_iid_clients_are_not_biased(num_classes: int) -> None:
    """Mixes of 608 uniform labels: what batches of 32 at rate .1 hold. A fixed .2 flags 100 classes."""
    counts = np.random.default_rng(0).multinomial(608, np.full(num_classes, 1 / num_classes), 50)
    mixes = counts / 608
    d = dict(enumerate(mixes - mixes.mean(0)))
    sizes = dict.fromkeys(d, 608.0)
    assert biased(d, sizes, PairingConfig()) == []
    assert (len(biased(d, sizes, PairingConfig(bias_threshold="fixed"))) > 25) == (num_classes == 100)
    everybody = Matcher(d, dict.fromkeys(d, 1 / 50), PairingConfig())
    assert everybody.pairs(biased(d, sizes, PairingConfig())) == []
