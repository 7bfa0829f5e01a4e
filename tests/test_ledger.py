"""Bytes by round, phase, link, direction and kind."""

from collections import Counter

import pytest

from rayfl.ledger import Entry, Ledger, entry

LINES = [
    ("client", "main", "activation", ("train", "client-main", "up")),
    ("main", "client", "gradient", ("train", "client-main", "down")),
    ("client", "fed", "weights", ("aggregation", "client-fed", "up")),
    ("client", "fed", "counts", ("aggregation", "client-fed", "up")),
    ("fed", "client", "weights", ("aggregation", "client-fed", "down")),
    ("client", "edge", "label", ("train", "client-edge", "up")),
    ("edge", "client", "gradient", ("train", "client-edge", "down")),
    ("edge", "main", "activation", ("train", "edge-cloud", "up")),
    ("main", "edge", "gradient", ("train", "edge-cloud", "down")),
    ("edge", "fed", "weights", ("aggregation", "edge-cloud", "up")),
    ("fed", "edge", "weights", ("aggregation", "edge-cloud", "down")),
    ("client", "client", "aux", ("train", "client-client", "up")),
]


@pytest.mark.parametrize(("sender", "receiver", "kind", "expected"), LINES)
def test_links(sender: str, receiver: str, kind: str, expected: tuple[str, str, str]) -> None:
    """Which line a message between two roles belongs to."""
    line = entry(3, "train", sender, receiver, kind)
    assert line == Entry(3, *expected, kind)


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        ("main", "fed"),
        ("fed", "main"),
        ("main", "main"),
        ("driver", "client"),
        ("fed", "evaluator"),
        ("edge", "edge"),
    ],
)
def test_no_link_no_line(sender: str, receiver: str) -> None:
    """Servers on one machine, the driver and evaluators cost nothing."""
    assert entry(1, "train", sender, receiver, "weights") is None


def test_other_phases_keep_their_name() -> None:
    """Weights sent to be scored are evaluation, not aggregation."""
    line = entry(1, "evaluation", "fed", "client", "weights")
    assert line is not None
    assert line.phase == "evaluation"


@pytest.fixture
def ledger() -> Ledger:
    """Two rounds, some evaluation."""
    book = Ledger()
    up, label = (
        entry(1, "train", "client", "main", "activation"),
        entry(1, "train", "client", "main", "label"),
    )
    later, scored = (
        entry(2, "train", "client", "main", "label"),
        entry(2, "evaluation", "fed", "client", "weights"),
    )
    assert None not in (up, label, later, scored)
    book.add(Counter({up: 100, label: 8}))
    book.add(Counter({label: 8, later: 32, scored: 1000}))
    return book


def test_totals(ledger: Ledger) -> None:
    """Evaluation is left out of headlines and there for who asks."""
    assert ledger.total() == 148
    assert ledger.total(kind="label") == 48
    assert ledger.total(round=1, direction="up") == 116
    assert ledger.total(phase="evaluation") == 1000
    assert ledger.total(link="client-fed") == 0


def test_metrics(ledger: Ledger) -> None:
    """A round's own bytes by line, and the running total up to it."""
    assert ledger.metrics(1) == {
        "comm/client-main_up_activation_bytes": 100,
        "comm/client-main_up_label_bytes": 16,
        "comm/total_bytes": 116,
    }
    assert ledger.metrics(2) == {"comm/client-main_up_label_bytes": 32, "comm/total_bytes": 148}
    assert ledger.metrics(0) == {"comm/total_bytes": 0}


def test_state(ledger: Ledger) -> None:
    """Plain values there and back."""
    other = Ledger()
    other.load_state_dict(ledger.state_dict())
    assert other.bytes == ledger.bytes
    assert next(other.rows()) == {
        "round": 1, "phase": "train", "link": "client-main", "direction": "up",
        "kind": "activation", "bytes": 100,
    }  # fmt: skip
