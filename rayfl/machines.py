"""What actors need, what machines have, and how many of the ones fit on the others.

Asked before torch and Ray are imported, which takes seconds, so it needs neither.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_SLACK = 1e-9
"""Shares such as 0.1 are not exact."""
_NO_BOUND = 1 << 20


@dataclass(frozen=True)
class Need:
    """What an actor reserves."""

    amounts: Mapping[str, float] = field(default_factory=dict)
    """CPU, GPU and custom resources; none of them 0."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What its node must be labelled with."""

    def __str__(self) -> str:
        parts = [f"{self.amounts.get(kind, 0.0):g} {kind}" for kind in ("CPU", "GPU")]
        parts += [f"{amount:g} {name}" for name, amount in self.amounts.items() if name not in ("CPU", "GPU")]
        parts += [f"the label {key}={value}" for key, value in self.labels.items()]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"


@dataclass(frozen=True)
class Machine:
    """A node, or the part of one that a trial has reserved."""

    amounts: Mapping[str, float]
    """CPU, GPU and custom resources."""
    labels: Mapping[str, str] | None = field(default_factory=dict)
    """None where nobody knows yet, then custom resources don't count either."""
    node: str = ""
    """Ray's id of the node."""
    bundle: int | None = None
    """Which bundle of the trial's placement group this is."""

    def has_labels(self, need: Need) -> bool:
        """Whether it is labelled as an actor needs it."""
        return self.labels is None or need.labels.items() <= self.labels.items()


class Room:
    """What is left of a machine while actors are put on it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._left = dict(machine.amounts)
        gpus = self._left.pop("GPU", 0.0)
        # A share of a GPU lies on one card: 0.6 + 0.6 does not fit on 1.2 of two.
        self._cards = [1.0] * math.floor(gpus) + [gpus % 1] * (gpus % 1 > 0)

    def times(self, need: Need) -> int:
        """How many actors with this need still fit."""
        if not self.machine.has_labels(need):
            return 0
        fits = [_NO_BOUND]
        for name, amount in need.amounts.items():
            if name == "GPU":
                fits.append(self._times_on_cards(amount))
            elif name == "CPU" or self.machine.labels is not None:
                fits.append(math.floor(self._left.get(name, 0.0) / amount + _SLACK))
        return min(fits)

    def _times_on_cards(self, share: float) -> int:
        if share > 1:
            return math.floor(sum(card == 1 for card in self._cards) / share)
        return sum(math.floor(card / share + _SLACK) for card in self._cards)

    def take(self, need: Need) -> None:
        """Put one such actor here."""
        for name, amount in need.amounts.items():
            if name != "GPU":
                self._left[name] = self._left.get(name, 0.0) - amount
                continue
            for _ in range(max(1, math.floor(amount))):
                share = min(amount, 1.0)
                # The fullest card that still has it, as Ray does: whole cards stay whole.
                card = min(card for card in self._cards if card >= share - _SLACK)
                self._cards[self._cards.index(card)] = max(card - share, 0.0)


def capacity(need: Need, machines: Sequence[Machine]) -> int:
    """Actors with this need that fit on some machines at once."""
    return sum(Room(machine).times(need) for machine in machines)


def fill(needs: Sequence[Need], rooms: Sequence[Room]) -> Need | None:
    """Put actors into rooms, the largest first; the first that finds none comes back."""
    for need in sorted(needs, key=_size, reverse=True):
        room = next((room for room in rooms if room.times(need)), None)
        if room is None:
            return need
        room.take(need)
    return None


def _size(need: Need) -> tuple[int, float, float]:
    amounts = need.amounts
    rare = len(need.labels) + sum(name not in ("CPU", "GPU") for name in amounts)
    return rare, amounts.get("GPU", 0.0), amounts.get("CPU", 0.0)
