"""The byte ledger: what would have crossed each link, whoever shared a process.

Counted by the fleet at the border between parties, per receiver. No method counts anything itself.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

HEADLINE_PHASES = ("train", "calibration", "aggregation")
"""Evaluation traffic is kept apart and left out of totals."""

_TIERS = {"client": 0, "edge": 1, "fed": 2, "main": 2}
_LINKS = {
    ("client", "client"): "client-client",
    ("client", "edge"): "client-edge",
    ("client", "main"): "client-main",
    ("client", "fed"): "client-fed",
    ("edge", "main"): "edge-cloud",
    ("edge", "fed"): "edge-cloud",
}
_PHASE_OF_KIND = {"weights": "aggregation", "counts": "aggregation"}


class Entry(NamedTuple):
    """One line of the ledger. Main and fed server share a machine: between them nothing is counted."""

    round: int
    phase: str
    link: str
    direction: str
    kind: str


def entry(t: int, phase: str, sender: str, receiver: str, kind: str) -> Entry | None:
    """The line that a message belongs to, or None where it crosses no link."""
    if sender not in _TIERS or receiver not in _TIERS:
        return None
    low, high = sorted((sender, receiver), key=lambda role: _TIERS[role])
    link = _LINKS.get((low, high))
    if link is None:
        return None
    direction = "down" if _TIERS[sender] > _TIERS[receiver] else "up"
    if phase == "train":
        phase = _PHASE_OF_KIND.get(kind, phase)
    return Entry(t, phase, link, direction, kind)


@dataclass
class Ledger:
    """Bytes by (round, phase, link, direction, kind)."""

    bytes: Counter[Entry] = field(default_factory=Counter)

    def add(self, counts: Counter[Entry]) -> None:
        """Take in what a host counted."""
        self.bytes.update(counts)

    def rows(self) -> Iterator[dict[str, object]]:
        """One plain record per line, in order."""
        for line in sorted(self.bytes):
            yield {**line._asdict(), "bytes": self.bytes[line]}

    def total(self, **where: object) -> int:
        """Headline bytes, or those whose fields equal ``where`` (for instance ``kind="label"``)."""
        return sum(
            count
            for line, count in self.bytes.items()
            if all(getattr(line, name) == value for name, value in where.items())
            and ("phase" in where or line.phase in HEADLINE_PHASES)
        )

    def metrics(self, t: int) -> dict[str, float]:
        """``comm/...`` of round ``t``, and the running total."""
        result: Counter[str] = Counter()
        total = 0
        for line, count in self.bytes.items():
            if line.phase in HEADLINE_PHASES and line.round <= t:
                total += count
                if line.round == t:
                    result[f"comm/{line.link}_{line.direction}_{line.kind}_bytes"] += count
        return {**result, "comm/total_bytes": total}

    def state_dict(self) -> dict[str, object]:
        """Plain values only."""
        return {"rows": [[*line, count] for line, count in sorted(self.bytes.items())]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Replace everything by a stored ledger."""
        rows = state["rows"]
        assert isinstance(rows, list)
        self.bytes = Counter({Entry(*row[:-1]): row[-1] for row in rows})
