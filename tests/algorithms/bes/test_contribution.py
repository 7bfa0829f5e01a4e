"""What a client counts: by hand, alike where clients are alike, and each part left out."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rayfl.algorithms.bes.config import ContributionConfig
from rayfl.algorithms.bes.contribution import concentration, masses, penalty, score, shares
from rayfl.algorithms.bes.records import ClassSums, Record

ROWS = {0: [6.0, 1.0, 1.0, 0.0], 1: [1.0, 1.0, 2.0, 0.0], 3: [0.0, 0.0, 0.0, 0.0]}
"""Evidence by label, of a client without class 2."""
SHARES = (6 / 8, 1 / 4)
"""Of the true class, in the rows that have evidence."""


def record(
    rows: dict[int, list[float]] | None = None, aleatoric: float = 0.5, epistemic: float = 0.25, **sizes: int
) -> Record:
    """One sample per label of ``rows``, whose uncertainties are the given ones on average."""
    rows = ROWS if rows is None else rows
    made = Record.empty(4, sizes.get("num_samples", 10))
    spread = torch.linspace(-0.1, 0.1, len(rows), dtype=torch.float64)
    evidence = torch.tensor(list(rows.values()), dtype=torch.float64)
    labels = torch.tensor(list(rows))
    made.update(ClassSums.of(evidence, aleatoric + spread, epistemic - spread, labels), 0.1, 1)
    return made


def entropy(*shares: float) -> float:
    """To base 4."""
    return -sum(share * math.log(share, 4) for share in shares)


@pytest.mark.parametrize(
    ("ec", "by_class"),
    [
        ("diag_share", SHARES),
        ("neg_entropy", (1 - entropy(6 / 8, 1 / 8, 1 / 8), 1 - entropy(1 / 4, 1 / 4, 1 / 2))),
        ("gini", ((4 * 38 / 64 - 1) / 3, (4 * 6 / 16 - 1) / 3)),
    ],
)
def test_concentration_by_hand(ec: Any, by_class: tuple[float, float]) -> None:
    """A class seen without evidence counts 0; one never seen does unless only observed ones are asked."""
    for prior, divisor in (("all", 4), ("observed", 3), ("local", 3)):
        found = concentration(record(), ContributionConfig(ec=ec, ec_prior=prior))  # type: ignore[arg-type]
        assert found == pytest.approx(sum(by_class) / divisor, abs=1e-12)


def test_local_prior_goes_by_the_label_mix() -> None:
    made = Record.empty(4, 10)
    evidence = torch.tensor([ROWS[0]] * 3 + [ROWS[1]], dtype=torch.float64)
    nothing = torch.zeros(4, dtype=torch.float64)
    made.update(ClassSums.of(evidence, nothing, nothing, torch.tensor([0, 0, 0, 1])), 0.1, 1)
    found = concentration(made, ContributionConfig(ec_prior="local"))
    assert found == pytest.approx(0.75 * SHARES[0] + 0.25 * SHARES[1], abs=1e-12)


def test_who_has_two_of_four_classes_has_half_at_most() -> None:
    sure = {0: [9.0, 0.0, 0.0, 0.0], 1: [0.0, 1e-12, 0.0, 0.0]}
    assert concentration(record(sure), ContributionConfig()) == 0.5


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exp", math.exp(-2 * 0.5 - 3 * 0.25)),
        ("product", 0.5**2 * 0.75**3),
        ("inverse", 1 / (1 + 2 * 0.5 + 3 * 0.25)),
        ("fedevi", 0.25**3 / 0.5**2),
    ],
)
def test_penalty_by_hand(how: Any, expected: float) -> None:
    """Uncertainties .5 and .25 on average over the three classes that were seen, with exponents 2 and 3."""
    config = ContributionConfig(penalty=how, g_a=2, g_e=3)
    assert penalty(record(), config) == pytest.approx(expected, rel=1e-12)
    only_epistemic = replace(config, ablate="no_aleatoric")
    assert penalty(record(), only_epistemic) == pytest.approx(penalty(record(), replace(config, g_a=0)))
    assert penalty(record(), only_epistemic) != pytest.approx(expected)
    only_aleatoric = replace(config, ablate="no_epistemic")
    assert penalty(record(), only_aleatoric) == pytest.approx(penalty(record(), replace(config, g_e=0)))
    assert penalty(record(), only_aleatoric) != pytest.approx(expected)


@pytest.mark.parametrize("how", ["exp", "product", "inverse", "fedevi"])
def test_penalty_at_its_ends(how: Any) -> None:
    """Certain or not at all, with roots in it: a finite number, not negative."""
    for aleatoric, epistemic in ((0.0, 0.0), (1.0, 1.0), (1 + 1e-15, 1 + 1e-15)):
        made = record({0: ROWS[0]}, aleatoric + 0.1, epistemic - 0.1)
        found = penalty(made, ContributionConfig(penalty=how, g_a=0.5, g_e=0.5))
        assert math.isfinite(found)
        assert found >= 0


def test_score_and_what_is_left_out() -> None:
    config = ContributionConfig(sharp=2)
    ec, sure = concentration(record(), config), penalty(record(), config)
    assert score(record(), config) == pytest.approx((ec * sure) ** 2)
    assert score(record(), ContributionConfig(ablate="no_concentration")) == pytest.approx(sure)
    assert score(record(), ContributionConfig(ablate="no_penalty")) == pytest.approx(ec)


def clients(count: int = 5) -> dict[int, Record]:
    """Records of random evidence."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for client in range(count):
        rows = torch.rand(4, 4, generator=draw, dtype=torch.float64) * 10
        uncertain = torch.rand(2, generator=draw).tolist()
        found[client] = record(dict(enumerate(rows.tolist())), *(0.1 + 0.8 * u for u in uncertain))
    return found


@pytest.mark.parametrize("how", ["exp", "product", "inverse", "fedevi"])
@pytest.mark.parametrize("ec", ["diag_share", "neg_entropy", "gini"])
def test_weights_go_by_scores(how: Any, ec: Any) -> None:
    records, config = clients(), ContributionConfig(penalty=how, ec=ec)
    found = masses(records, records, config, {})
    scores = {client: score(made, config) for client, made in records.items()}
    assert all(mass > 0 for mass in found.values())
    assert sum(found.values()) == pytest.approx(5, abs=1e-12)
    weights = shares(found)
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    for client, weight in weights.items():
        assert weight == pytest.approx(scores[client] / sum(scores.values()), abs=1e-12)


@pytest.mark.parametrize("ec", ["diag_share", "neg_entropy", "gini"])
def test_scale_of_evidence_does_not_count_without_penalty(ec: Any) -> None:
    records, config = clients(), ContributionConfig(ec=ec, ablate="no_penalty")
    before = shares(masses(records, records, config, {}))
    for made in records.values():
        made.evidence = made.evidence * 1e-6
    after = shares(masses(records, records, config, {}))
    assert after == pytest.approx(before, abs=1e-12)


def test_equal_records_count_alike() -> None:
    records = {client: record() for client in range(7)}
    found = shares(masses(records, records, ContributionConfig(), {}))
    assert found == pytest.approx(dict.fromkeys(range(7), 1 / 7), abs=1e-12)


def test_everybody_counts_alike_when_off_or_nothing_is_known() -> None:
    """Exactly 1, so that the mean has the same bits as a plain one."""
    records = clients()
    assert masses(records, [4, 2], ContributionConfig(ablate="off"), {2: 3.0}) == {2: 1.0, 4: 1.0}
    assert masses({}, [4, 2], ContributionConfig(), {}) == {2: 1.0, 4: 1.0}
    hopeless = {client: record({0: [0.0] * 4}) for client in (2, 4)}
    assert masses(hopeless, hopeless, ContributionConfig(), {}) == {2: 1.0, 4: 1.0}


def test_a_client_without_record_has_the_median_score() -> None:
    records, config = clients(), ContributionConfig()
    found = masses(records, [5, 3, 4, 1, 0, 2], config, {})
    middle = sorted(score(made, config) for made in records.values())[2]
    assert list(found) == [0, 1, 2, 3, 4, 5]
    assert found[5] / found[0] == pytest.approx(middle / score(records[0], config))


def test_the_least_score() -> None:
    """A client whose evidence is all wrong still counts a tenth of the best one."""
    records = {0: record(), 1: record({0: [0.0, 5.0, 0.0, 0.0]})}
    found = shares(masses(records, records, ContributionConfig(w_min=0.1), {}))
    assert found == pytest.approx({0: 10 / 11, 1: 1 / 11}, abs=1e-12)


def test_weights_may_follow_slowly() -> None:
    """A quarter of the way; who had none before goes all of it."""
    records = clients(3)
    now = masses(records, records, ContributionConfig(), {})
    slow = masses(records, records, ContributionConfig(w_ema=0.75), {0: 2.0, 1: 0.5})
    mixed = {0: 1.5 + now[0] / 4, 1: 0.375 + now[1] / 4, 2: now[2]}
    assert shares(slow) == pytest.approx(shares(mixed), abs=1e-12)
    assert sum(slow.values()) == pytest.approx(3, abs=1e-12)
