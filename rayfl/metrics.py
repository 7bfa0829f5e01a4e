"""Numbers made of predictions, and of a run's history."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
History = Sequence[Mapping[str, float]]


def confusion_matrix(labels: Ints, predictions: Ints, num_classes: int) -> Ints:
    """[K, K] counts; rows are true classes."""
    flat = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def macro_f1(confusion: Ints) -> float:
    """The mean over classes that occur or are predicted of 2 TP / (2 TP + FP + FN)."""
    hits = np.diag(confusion)
    denominator = confusion.sum(0) + confusion.sum(1)
    seen = denominator > 0
    return float(np.mean(2 * hits[seen] / denominator[seen])) if seen.any() else 0.0


def over_clients(accuracies: Sequence[float]) -> dict[str, float]:
    """Mean, population std and mean of the worst tenth (at least one) of the clients' accuracies."""
    if not accuracies:
        return {}
    ordered = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = ordered[: max(1, len(ordered) // 10)]
    return {
        "client/test_accuracy_mean": float(ordered.mean()),
        "client/test_accuracy_std": float(ordered.std()),
        "client/test_accuracy_worst10": float(worst.mean()),
    }


def final(history: History, targets: Sequence[float]) -> dict[str, float]:
    """``final/...``: what a table quotes. A target that was not reached has no entry.

    ``last10_accuracy`` is the mean over the last ten evaluated rounds after round 0; the best round is
    chosen on the test set, so it is an optimistic number.
    """
    scored = [row for row in history if "global/test_accuracy" in row and row["round"] > 0]
    scored = scored or [row for row in history if "global/test_accuracy" in row]
    if not scored:
        return {}
    accuracies = [row["global/test_accuracy"] for row in scored]
    best = int(np.argmax(accuracies))
    result = {
        "final/accuracy": accuracies[-1],
        "final/last10_accuracy": float(np.mean(accuracies[-10:])),
        "final/best_accuracy": accuracies[best],
        "final/best_round": float(scored[best]["round"]),
    }
    for target in targets:
        reached = next((row for row in scored if row["global/test_accuracy"] >= target), None)
        if reached is not None:
            result[f"final/rounds_to_{target:g}"] = float(reached["round"])
            result[f"final/bytes_to_{target:g}"] = float(reached["comm/total_bytes"])
            passed = [row["wall/round_s"] for row in history if row["round"] <= reached["round"]]
            result[f"final/time_to_{target:g}"] = float(sum(passed))
    return result
