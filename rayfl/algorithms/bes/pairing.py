"""Which clients are biased, and who pairs with whom in a round (BCC)."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rayfl.algorithms.bes.config import PairingConfig
from rayfl.algorithms.bes.mixing import Floats, Ints, exchanged, fractions, joint_bias


@dataclass(frozen=True)
class Pair:
    """Two clients that exchange."""

    first: int
    second: int
    """Of the higher id."""
    rho: Floats
    """[N] fraction of each class."""
    gain: float
    """By how much their joint bias falls."""


def biased(deviations: Mapping[int, Floats], sizes: Mapping[int, float], config: PairingConfig) -> list[int]:
    """The clients, ascending, whose deviation [N] is larger in L1 than zeta.

    ``noise``: a sample of n labels is about sqrt(2 (N - 1) / (pi n)) away from its own distribution;
    ``sizes`` has the n behind each client's label mix.
    """
    bias = {client: float(np.abs(d).sum()) for client, d in sorted(deviations.items())}
    # Of equals none is above the mean by a rounding.
    mean = math.fsum(bias.values()) / max(len(bias), 1) + 1e-12

    def zeta(client: int) -> float:
        if config.bias_threshold == "mean":
            return mean
        if config.bias_threshold == "fixed":
            return config.zeta
        spread = math.sqrt(2 * (len(deviations[client]) - 1) / (math.pi * sizes[client]))
        return max(config.zeta, config.noise * spread)

    return [client for client, value in bias.items() if value > zeta(client)]


class Matcher:
    """Pairs the clients of a round, the largest gain first; of equals those of lower ids."""

    def __init__(
        self, deviations: Mapping[int, Floats], weights: Mapping[int, float], config: PairingConfig
    ) -> None:
        """``deviations`` [N] of biased clients only; ``weights`` w of these at least."""
        self.config, self.ids = config, np.array(sorted(deviations), dtype=np.int64)
        self._d = np.array([deviations[client] for client in self.ids])
        self._w = np.array([[weights[client]] for client in self.ids])
        self._first, self._second = np.triu_indices(len(self.ids), 1)
        # Row by row: all pairs times all classes at once would not fit with a thousand clients.
        rows = [self._gains(i, np.arange(i + 1, len(self.ids))) for i in range(len(self.ids) - 1)]
        self._gain = np.concatenate(rows) if rows else np.empty(0)
        order = np.argsort(-self._gain, kind="stable")
        self._order = order[self._gain[order] > config.g_min]

    def _fractions(self, i: int, j: int | Ints) -> Floats:
        return fractions(self._d[i], self._d[j], self._w[i], self._w[j], self.config)

    def _gains(self, i: int, j: Ints) -> Floats:
        d_i, d_j, w_i, w_j = self._d[i], self._d[j], self._w[i], self._w[j]
        after = exchanged(d_i, d_j, self._fractions(i, j))
        return joint_bias(d_i, d_j, w_i, w_j) - joint_bias(*after, w_i, w_j)

    def pairs(self, present: Collection[int]) -> list[Pair]:
        """Each of ``present`` in at most one pair; pairs that gain no more than ``config.g_min`` in none."""
        free = np.isin(self.ids, list(present))
        left, matched = self._order, []
        while len(left := left[free[self._first[left]] & free[self._second[left]]]):
            i, j = int(self._first[left[0]]), int(self._second[left[0]])
            free[[i, j]] = False
            gain = float(self._gain[left[0]])
            matched.append(Pair(int(self.ids[i]), int(self.ids[j]), self._fractions(i, j), gain))
        return matched


def calibrated(deviations: Mapping[int, Floats], pairs: Iterable[Pair]) -> dict[int, Floats]:
    """The deviations [N] of all clients once ``pairs`` have exchanged."""
    after = dict(deviations)
    for pair in pairs:
        d_i, d_j = deviations[pair.first], deviations[pair.second]
        after[pair.first], after[pair.second] = exchanged(d_i, d_j, pair.rho)
    return after


def label_bias(deviations: Mapping[int, Floats], weights: Mapping[int, float]) -> float:
    """sum_k w_k ||d_k||_1: what bounds the bias of the server's gradient."""
    return math.fsum(weights[client] * float(np.abs(d).sum()) for client, d in deviations.items())
