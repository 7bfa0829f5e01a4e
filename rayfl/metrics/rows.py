"""From the scores of one evaluation to a round's metrics and to the tables behind them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data import FederatedData
from rayfl.metrics.classification import Ints, confusion_matrix, of_classes
from rayfl.metrics.clients import over_clients
from rayfl.metrics.segmentation import dice_by_image, of_masks
from rayfl.tasks import TASKS, ClassScore, MaskScore, Score, join

Scores = Mapping[int, tuple[Score, Score]]
Tables = Mapping[str, Sequence[Sequence[Any]]]
"""By name: what is too much for a metric and is kept as a file."""


def of_global_model(
    scores: Scores, data: FederatedData, dangerous: Sequence[int] = ()
) -> tuple[dict[str, float], Tables]:
    """From every slice's score on test and validation rows."""
    test, held_out = data.test, data.validation_indices
    score = join([on_test for on_test, _ in scores.values()])
    name, each = _headline(score, test.labels)
    row = _row(score, data, dangerous)
    own = {i: float(each[mine].mean()) for i, mine in enumerate(data.client_test_indices) if len(mine)}
    row.update(over_clients(list(own.values()), name))
    if len(held_out):
        score_held_out = join([on_held_out for _, on_held_out in scores.values()])
        row[f"global/val_{name}"] = float(_headline(score_held_out, data.train.labels[held_out])[1].mean())
        row["global/val_loss"] = score_held_out.loss / len(held_out)
    tables: dict[str, Sequence[Sequence[Any]]] = {"clients": _clients(data, {name: own})}
    if isinstance(score, ClassScore):
        confusion = confusion_matrix(test.labels, score.predictions.numpy(), test.num_classes)
        tables["confusion"] = confusion.tolist()
    return row, tables


def of_personal_models(
    scores: Scores, data: FederatedData, dangerous: Sequence[int] = ()
) -> tuple[dict[str, float], Tables]:
    """From every client's score on all test rows, whose metrics are averaged, and on its own."""
    labels = data.test.labels
    everywhere, own = {}, {}
    for client, (on_all, on_own) in scores.items():
        everywhere[client] = _row(on_all, data, dangerous)
        name, each = _headline(on_own, labels[data.client_test_indices[client]])
        if len(each):
            own[client] = float(each.mean())
    keys = dict.fromkeys(key for row in everywhere.values() for key in row)
    row = {key: float(np.mean([row[key] for row in everywhere.values() if key in row])) for key in keys}
    row.update(over_clients(list(own.values()), name))
    on_all_rows = {client: found[f"global/test_{name}"] for client, found in everywhere.items()}
    return row, {"clients": _clients(data, {name: own, f"{name} on all test rows": on_all_rows})}


def _headline(score: Score, labels: Ints) -> tuple[str, npt.NDArray[Any]]:
    """The name of the headline metric and [n] what each row contributes to its mean."""
    if isinstance(score, MaskScore):
        return TASKS["segmentation"].headline, dice_by_image(score)
    assert isinstance(score, ClassScore)
    return TASKS["classification"].headline, score.predictions.numpy() == labels


def _row(score: Score, data: FederatedData, dangerous: Sequence[int]) -> dict[str, float]:
    """``global/test_...`` of a score on all test rows."""
    test = data.test
    name, each = _headline(score, test.labels)
    found = {name: float(each.mean()), "loss": score.loss / len(test)}
    if isinstance(score, MaskScore):
        found.update(of_masks(score))
    elif isinstance(score, ClassScore):
        names = test.class_names or [str(k) for k in range(test.num_classes)]
        found.update(of_classes(score, test.labels, names, dangerous))
    return {f"global/test_{key}": value for key, value in found.items()}


def _clients(data: FederatedData, columns: Mapping[str, Mapping[int, float]]) -> list[list[Any]]:
    """One line per client: its samples, its test rows, and some values, empty where there is none."""
    lines: list[list[Any]] = [["client", "num_samples", "num_test", *columns]]
    for i, (mine, tests) in enumerate(zip(data.client_indices, data.client_test_indices, strict=True)):
        lines.append([i, len(mine), len(tests), *(column.get(i, "") for column in columns.values())])
    return lines
