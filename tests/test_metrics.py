"""Numbers made of predictions and histories, worked out by hand."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from rayfl import metrics


def test_confusion_and_f1_by_hand() -> None:
    """True 0,0,1,2 predicted 0,1,1,1: F1 of 2/3, 1/2 and 0, mean 7/18."""
    confusion = metrics.confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 3)
    assert confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert metrics.macro_f1(confusion) == pytest.approx(7 / 18)


@pytest.mark.parametrize("seed", range(3))
def test_confusion_and_f1_against_scikit_learn(seed: int) -> None:
    """Classes that neither occur nor are predicted don't count."""
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, 4, 30), rng.integers(0, 5, 30)
    confusion = metrics.confusion_matrix(labels, predictions, 7)
    assert (confusion == confusion_matrix(labels, predictions, labels=range(7))).all()
    assert metrics.macro_f1(confusion) == pytest.approx(f1_score(labels, predictions, average="macro"))


def test_f1_of_nothing() -> None:
    """No rows give 0, not NaN."""
    assert metrics.macro_f1(np.zeros((3, 3), dtype=np.int64)) == 0.0


def test_over_clients() -> None:
    """Mean, population std and the worst tenth, at least one client."""
    found = metrics.over_clients([0.5, 1.0])
    assert found["client/test_accuracy_mean"] == 0.75
    assert found["client/test_accuracy_std"] == 0.25
    assert found["client/test_accuracy_worst10"] == 0.5
    twenty = metrics.over_clients([i / 20 for i in range(20)])
    assert twenty["client/test_accuracy_worst10"] == pytest.approx(0.025)
    assert metrics.over_clients([]) == {}


def history(accuracies: list[float | None]) -> list[dict[str, float]]:
    """Rounds from 0 of 2 s and 100 bytes each; None where nothing was scored."""
    rows = []
    for t, accuracy in enumerate(accuracies):
        row = {"round": float(t), "wall/round_s": 2.0 if t else 0.0, "comm/total_bytes": 100.0 * t}
        rows.append(row if accuracy is None else {**row, "global/test_accuracy": accuracy})
    return rows


def test_final() -> None:
    """Round 0 and rounds that weren't scored are left out; the first round at a target counts."""
    found = metrics.final(history([0.9, 0.2, None, 0.6, 0.5]), [0.5, 0.6, 0.95])
    assert found == {
        "final/accuracy": 0.5,
        "final/last10_accuracy": pytest.approx((0.2 + 0.6 + 0.5) / 3),
        "final/best_accuracy": 0.6,
        "final/best_round": 3.0,
        "final/rounds_to_0.5": 3.0,
        "final/bytes_to_0.5": 300.0,
        "final/time_to_0.5": 6.0,
        "final/rounds_to_0.6": 3.0,
        "final/bytes_to_0.6": 300.0,
        "final/time_to_0.6": 6.0,
    }


def test_last_ten() -> None:
    """Only the last ten scored rounds are averaged."""
    found = metrics.final(history([0.0] * 6 + [0.5] * 10), [])
    assert found["final/last10_accuracy"] == 0.5


def test_final_of_no_rounds() -> None:
    """Zero rounds quote round 0; an empty history quotes nothing."""
    assert metrics.final(history([0.3]), [])["final/accuracy"] == 0.3
    assert metrics.final([], [0.5]) == {}
