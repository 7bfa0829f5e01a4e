"""What a client's weights count in the averages (EA): its evidence, concentrated and sure.

Reconstructed: the paper names evidence concentration, uncertainty penalisation and client contribution; the
formulas behind the names are ours, with other readings as options of ``ContributionConfig``.
"""

import math
import statistics
from collections.abc import Iterable, Mapping

import torch

from rayfl.algorithms.bes.config import ContributionConfig
from rayfl.algorithms.bes.records import Record

EPS = 1e-8
"""Least uncertainty that is divided by."""


def concentration(record: Record, config: ContributionConfig) -> float:
    """EC_k in [0, 1]: how much of the evidence lands where it should, a mean over classes.

    With the default prior a client cannot exceed the share of all classes that it has: one that is sure of
    two out of ten, having seen no others, has 0.2 at most.
    """
    rows = record.mean_evidence()
    totals = rows.sum(1, keepdim=True)
    shares = torch.where(totals > 0, rows / totals, 0.0)
    num_classes = len(rows)
    if config.ec == "diag_share":
        by_class = shares.diagonal()
    elif config.ec == "neg_entropy":
        by_class = 1 + torch.xlogy(shares, shares).sum(1) / math.log(num_classes)
    else:
        by_class = (num_classes * shares.square().sum(1) - 1) / (num_classes - 1)
    # Also for classes that were seen without any evidence, whose row is no distribution.
    by_class = torch.where(totals[:, 0] > 0, by_class.clamp_min(0), 0.0)
    if config.ec_prior == "local":
        return float(by_class @ record.proportions())
    observed = record.observed.sum() if config.ec_prior == "observed" else num_classes
    return float(by_class.sum() / observed)


def penalty(record: Record, config: ContributionConfig) -> float:
    """R_k, less the more uncertain: in (0, 1] but for ``fedevi``, where epistemic uncertainty adds."""
    num_observed = int(record.observed.sum())
    aleatoric, epistemic = (float(values.sum()) / num_observed for values in record.uncertainties())
    g_a = 0.0 if config.ablate == "no_aleatoric" else config.g_a
    g_e = 0.0 if config.ablate == "no_epistemic" else config.g_e
    if config.penalty == "exp":
        return math.exp(-g_a * aleatoric - g_e * epistemic)
    if config.penalty == "inverse":
        return 1 / (1 + g_a * aleatoric + g_e * epistemic)
    if config.penalty == "product":
        return float(max(1 - aleatoric, 0.0) ** g_a * max(1 - epistemic, 0.0) ** g_e)
    return float(max(epistemic, EPS) ** g_e / max(aleatoric, EPS) ** g_a)


def score(record: Record, config: ContributionConfig) -> float:
    """s_k = (EC_k R_k)^sharp, not less than 0."""
    ec = 1.0 if config.ablate == "no_concentration" else concentration(record, config)
    sure = 1.0 if config.ablate == "no_penalty" else penalty(record, config)
    return float((ec * sure) ** config.sharp)


def masses(
    records: Mapping[int, Record],
    clients: Iterable[int],
    config: ContributionConfig,
    before: Mapping[int, float],
) -> dict[int, float]:
    """What each of ``clients`` counts, in ascending id: positive, 1 in the mean, 1 each where all are alike.

    Divided by their sum they are the paper's w. A client without a record has the median score. ``before``
    has the masses of earlier rounds, for ``w_ema``.
    """
    ordered = sorted(clients)
    if config.ablate == "off":
        return dict.fromkeys(ordered, 1.0)
    known = {client: score(records[client], config) for client in ordered if client in records}
    if not any(known.values()):
        return dict.fromkeys(ordered, 1.0)
    usual, least = statistics.median(known.values()), config.w_min * max(known.values())
    found = _relative({client: max(known.get(client, usual), least) for client in ordered})
    kept = config.w_ema
    return _relative(
        {client: kept * before.get(client, mass) + (1 - kept) * mass for client, mass in found.items()}
    )


def _relative(values: Mapping[int, float]) -> dict[int, float]:
    mean = math.fsum(values.values()) / len(values)
    return {client: value / mean for client, value in values.items()}


def shares(masses: Mapping[int, float]) -> dict[int, float]:
    """w: the same, with a sum of 1."""
    total = math.fsum(masses.values())
    return {client: mass / total for client, mass in masses.items()}
