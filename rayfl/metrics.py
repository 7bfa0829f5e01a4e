"""Numbers made of predictions, and of a run's history."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from rayfl.data import FederatedData
from rayfl.evaluation import Score

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


def of_global_model(
    scores: Mapping[int, tuple[Score, Score]], data: FederatedData
) -> tuple[dict[str, float], Ints]:
    """A row's metrics and the [n_test] predictions, from every slice's score on test and validation rows."""
    test, train, rows = data.test, data.train, data.validation_indices
    predictions, loss = _join([score for score, _ in scores.values()])
    hits = predictions == test.labels
    confusion = confusion_matrix(test.labels, predictions, test.num_classes)
    row = {
        "global/test_accuracy": float(hits.mean()),
        "global/test_loss": loss / len(hits),
        "global/test_macro_f1": macro_f1(confusion),
        **over_clients([float(hits[mine].mean()) for mine in data.client_test_indices if len(mine)]),
    }
    if len(rows):
        predicted, loss = _join([score for _, score in scores.values()])
        row["global/val_accuracy"] = float((predicted == train.labels[rows]).mean())
        row["global/val_loss"] = loss / len(rows)
    return row, predictions


def of_personal_models(scores: Mapping[int, tuple[Score, Score]], data: FederatedData) -> dict[str, float]:
    """A row's metrics from every client's score on the whole test set and on its own test rows."""
    labels = data.test.labels
    everywhere, own, losses = [], [], []
    for client, (on_all, on_own) in scores.items():
        everywhere.append(float((on_all.predictions.numpy() == labels).mean()))
        losses.append(on_all.loss / len(labels))
        rows = data.client_test_indices[client]
        if len(rows):
            own.append(float((on_own.predictions.numpy() == labels[rows]).mean()))
    return {
        "global/test_accuracy": float(np.mean(everywhere)),
        "global/test_loss": float(np.mean(losses)),
        **over_clients(own),
    }


def _join(scores: Sequence[Score]) -> tuple[Ints, float]:
    """All slices' predictions in order, and the sum of their losses."""
    predictions = torch.cat([score.predictions for score in scores]).numpy()
    return predictions, math.fsum(score.loss for score in scores)


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
