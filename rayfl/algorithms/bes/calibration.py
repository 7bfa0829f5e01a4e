"""What the main server knows of a round's participants: their label mixes, their weights, who pairs (BCC)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rayfl.algorithms.bes.config import BESConfig
from rayfl.algorithms.bes.mixing import Floats
from rayfl.algorithms.bes.pairing import Matcher, Pair, biased, calibrated, label_bias
from rayfl.algorithms.bes.records import Record, global_mix


@dataclass
class Calibration:
    """Of one round. Without records there is nothing to know."""

    scope: str = "step"
    overall: Floats = field(default_factory=lambda: np.zeros(0))
    """P_g [N]."""
    deviations: Mapping[int, Floats] = field(default_factory=dict)
    """d_k [N] of participants with a record."""
    weights: Mapping[int, float] = field(default_factory=dict)
    """w of these, with a sum of 1 over all participants."""
    matcher: Matcher | None = None
    """Of the biased ones; None in rounds without pairs."""

    def __post_init__(self) -> None:
        self.planned = self.matcher.pairs(self.deviations) if self.matcher else []
        """The pairs if everybody has a batch."""
        self._last: tuple[tuple[int, ...], list[Pair]] = ((), [])

    def pairs(self, present: Collection[int]) -> list[Pair]:
        """Who pairs of those whose batches are there."""
        if not self.planned:
            return []
        if self.scope == "round":
            return [pair for pair in self.planned if pair.first in present and pair.second in present]
        assert self.matcher is not None
        if self._last[0] != tuple(present):
            self._last = tuple(present), self.matcher.pairs(present)
        return self._last[1]

    def first_gives(self, pair: Pair) -> npt.NDArray[np.bool_]:
        """[N] whether a class is the first one's to give, which has more of it than the other."""
        return self.deviations[pair.first] > self.deviations[pair.second]

    def planned_bias(self) -> tuple[float, float]:
        """sum_k w_k ||P_k - P_g||_1, as it is and once the planned pairs have exchanged."""
        after = calibrated(self.deviations, self.planned)
        return label_bias(self.deviations, self.weights), label_bias(after, self.weights)

    def realised_bias(self, mixes: Mapping[int, Floats]) -> float:
        """The same of the label mixes [N] that server-side models were trained on."""
        known = self.deviations.keys() & mixes.keys()
        return label_bias({client: mixes[client] - self.overall for client in sorted(known)}, self.weights)


def calibration(
    records: Mapping[int, Record], weights: Mapping[int, float], config: BESConfig, t: int
) -> Calibration:
    """For round ``t`` with participants of ``weights`` w, from all live ``records``."""
    known = [client for client in sorted(weights) if client in records]
    if not known:
        return Calibration()
    overall: Floats = global_mix(records).numpy()
    mixes = {client: records[client].proportions().cpu().numpy() for client in known}
    deviations = {client: mix - overall for client, mix in mixes.items()}
    matcher = None
    if config.bcc.mode != "off" and t > config.bcc.warmup:
        sizes = {client: _num_labels(records[client], config) for client in known}
        chosen = biased(deviations, sizes, config.bcc)
        matcher = Matcher({client: deviations[client] for client in chosen}, weights, config.bcc)
    return Calibration(config.bcc.match_scope, overall, deviations, weights, matcher)


def _num_labels(record: Record, config: BESConfig) -> float:
    # The mix of a whole round is that of all samples.
    at_once = config.batch_size if config.csr.update == "batch" else record.num_samples
    return record.num_labels(at_once, config.csr.eta)
