"""What a round knows of its participants: by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.bes.calibration import calibration
from rayfl.algorithms.bes.config import PairingConfig, RecordConfig
from rayfl.algorithms.bes.records import ClassSums, Record

Config: Any = ALGORITHMS["besplit"].Config
MIXES = {0: [6, 2, 0], 1: [0, 2, 6], 3: [4, 4, 0], 4: [1, 1, 6]}
SIZES = {0: 10, 1: 20, 3: 10, 4: 40}


def records() -> dict[int, Record]:
    """Of one batch each, with these labels."""
    found = {}
    for client, counts in MIXES.items():
        labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        zeros = torch.zeros(len(labels))
        found[client] = Record.empty(3, SIZES[client])
        found[client].update(ClassSums.of(torch.zeros(len(labels), 3), zeros, zeros, labels), 0.1, 1)
    return found


def pairs(weights: dict[int, float], t: int = 2, **config: Any) -> list[tuple[int, int]]:
    bcc = {"bias_threshold": "fixed", "zeta": 0.0, **config.pop("bcc", {})}
    found = calibration(records(), weights, Config(bcc=PairingConfig(**bcc), **config), t)
    return [(pair.first, pair.second) for pair in found.planned]


def test_deviations_are_of_participants_from_all_that_are_known() -> None:
    """Client 2 takes part and is unknown, client 4 is known and doesn't take part."""
    weights = {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125}
    found = calibration(records(), weights, Config(bcc=PairingConfig(mode="off")), 2)
    mixes = {client: np.array(counts) / 8 for client, counts in MIXES.items()}
    overall = sum(SIZES[client] * mixes[client] for client in MIXES) / 80
    assert found.overall == pytest.approx(overall)
    assert list(found.deviations) == [0, 1, 3]
    before = sum(weights[i] * np.abs(mixes[i] - overall).sum() for i in (0, 1, 3))
    assert found.planned_bias() == pytest.approx((before, before))
    even = dict.fromkeys(MIXES, np.ones(3) / 3)
    assert found.realised_bias(even) == pytest.approx(0.875 * np.abs(1 / 3 - overall).sum())
    assert found.realised_bias({2: np.ones(3), 3: overall}) == pytest.approx(0.0)
    assert (found.planned, found.matcher) == ([], None)


def test_nothing_is_known_of_strangers() -> None:
    assert calibration(records(), {2: 1.0}, Config(), 2).deviations == {}


def test_rounds_without_pairs() -> None:
    """The first ``warmup`` ones."""
    everybody = dict.fromkeys(MIXES, 0.25)
    assert pairs(everybody, 2) == [(0, 1), (3, 4)]
    assert pairs(everybody, 1) == []
    assert pairs(everybody, 3, bcc={"warmup": 3}) == []
    assert pairs(everybody, 4, bcc={"warmup": 3}) == [(0, 1), (3, 4)]


def test_noise_is_that_of_the_labels_behind_a_mix() -> None:
    """Of batches at rate eta, or of all of a client's samples where records are moved once a round."""
    noise = {"bias_threshold": "noise", "noise": 1.0}
    everybody = dict.fromkeys(MIXES, 0.25)
    # sqrt(4 / (pi n)): at n = 1 it is 1.13, more than anybody is off; at n of 10 to 40, 0.36 to 0.18.
    once = RecordConfig(eta=1.0)
    assert pairs(everybody, bcc=noise, csr=once, batch_size=1) == []
    assert pairs(everybody, bcc=noise, csr=RecordConfig(eta=1.0, update="round"), batch_size=1) != []
    assert pairs(everybody, bcc=noise, csr=once, batch_size=8) != []


def test_who_is_present_is_paired_among_themselves() -> None:
    everybody = dict.fromkeys(MIXES, 0.25)
    bcc = PairingConfig(bias_threshold="fixed", zeta=0.0)
    found = calibration(records(), everybody, Config(bcc=bcc), 2)

    def ids(present: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(pair.first, pair.second) for pair in found.pairs(present)]

    assert ids((0, 1, 3, 4)) == [(0, 1), (3, 4)]
    assert ids((0, 1, 3)) == [(0, 1)]
    assert ids((1, 3)) == [(1, 3)]
    assert ids((0,)) == []
    assert found.first_gives(found.planned[0]).tolist() == [True, False, False]
    found.scope = "round"
    assert ids((1, 3, 4)) == [(3, 4)]
    assert ids((1, 3)) == []
