"""From the scores of one evaluation to a round's metrics and to the tables behind them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data import Dataset, FederatedData
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
    row = _means(list(everywhere.values()))
    row.update(over_clients(list(own.values()), name))
    on_all_rows = {client: found[f"global/test_{name}"] for client, found in everywhere.items()}
    return row, {"clients": _clients(data, {name: own, f"{name} on all test rows": on_all_rows})}


def of_models_beside(
    name: str, scores: Scores, data: FederatedData, dangerous: Sequence[int] = ()
) -> dict[str, float]:
    """Of one more model per client: ``<name>/global_...``, on all test rows and averaged over clients, and
    ``<name>/local_...``, on the clients' own rows taken together. Without rows there is neither."""
    test, rows = data.test, data.client_test_indices
    everywhere = [
        _found(on_all, test.labels, test, dangerous) for on_all, _ in scores.values() if len(on_all)
    ]
    row = {f"{name}/global_{key}": value for key, value in _means(everywhere).items()}
    own = {client: on_own for client, (_, on_own) in scores.items() if len(on_own)}
    if own:
        labels = np.concatenate([test.labels[rows[client]] for client in own])
        together = _found(join(list(own.values())), labels, test, dangerous)
        row.update({f"{name}/local_{key}": value for key, value in together.items()})
    return {key: value for key, value in row.items() if "recall/" not in key}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: float(np.mean([row[key] for row in rows if key in row])) for key in keys}


def _headline(score: Score, labels: Ints) -> tuple[str, npt.NDArray[Any]]:
    """The name of the headline metric and [n] what each row contributes to its mean."""
    if isinstance(score, MaskScore):
        return TASKS["segmentation"].headline, dice_by_image(score)
    assert isinstance(score, ClassScore)
    return TASKS["classification"].headline, score.predictions.numpy() == labels


def _row(score: Score, data: FederatedData, dangerous: Sequence[int]) -> dict[str, float]:
    """``global/test_...`` of a score on all test rows."""
    found = _found(score, data.test.labels, data.test, dangerous)
    return {f"global/test_{key}": value for key, value in found.items()}


def _found(score: Score, labels: Ints, test: Dataset, dangerous: Sequence[int]) -> dict[str, float]:
    """The metrics of a score on test rows with these labels."""
    name, each = _headline(score, labels)
    found = {name: float(each.mean()), "loss": score.loss / len(labels)}
    if isinstance(score, MaskScore):
        found.update(of_masks(score))
    elif isinstance(score, ClassScore):
        names = test.class_names or [str(k) for k in range(test.num_classes)]
        found.update(of_classes(score, labels, names, dangerous))
    return found


def _clients(data: FederatedData, columns: Mapping[str, Mapping[int, float]]) -> list[list[Any]]:
    """One line per client: its samples, its test rows, and some values, empty where there is none."""
    lines: list[list[Any]] = [["client", "num_samples", "num_test", *columns]]
    for i, (mine, tests) in enumerate(zip(data.client_indices, data.client_test_indices, strict=True)):
        lines.append([i, len(mine), len(tests), *(column.get(i, "") for column in columns.values())])
    return lines
