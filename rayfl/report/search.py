"""The table of a search: its trials by rank."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rayfl import text
from rayfl.search.config import SearchConfig
from rayfl.search.trial import Outcome, Trial, score_text, value_text


def trials_frame(
    search: SearchConfig,
    trials: Sequence[tuple[Trial, Outcome, Mapping[str, Any]]],
    ranks: Mapping[int, int],
) -> pd.DataFrame:
    """One row per trial, the best first: rank, number, values, mean and standard deviation of each metric
    over seeds, rounds, status, error. Only trials that ran to their end are ranked."""
    rows = []
    for trial, result, values in trials:
        row: dict[str, Any] = {"rank": ranks.get(trial.number), "trial": trial.number}
        row.update({path: values.get(path) for path in search.search})
        for metric in search.metric:
            diverged = trial.status == "DIVERGED"
            row[metric] = math.nan if diverged else result.mean(metric)
            row[f"{metric} std"] = math.nan if diverged else result.std(metric)
        rows.append({**row, "rounds": result.rounds, "status": trial.status, "error": trial.error})
    columns = ["rank", "trial", *search.search]
    columns += [name for metric in search.metric for name in (metric, f"{metric} std")]
    frame = pd.DataFrame(rows, columns=[*columns, "rounds", "status", "error"])
    frame["rank"] = frame["rank"].astype("Int64")
    metric, mode = next(iter(search.metric.items()))
    signed = -frame[metric] if mode == "max" else frame[metric]
    order = frame.assign(_signed=signed, _rounds=-frame["rounds"])
    order = order.sort_values(["rank", "_rounds", "_signed", "trial"], na_position="last")
    frame = frame.loc[order.index].reset_index(drop=True)
    frame.attrs = {"name": search.name, "metric": dict(search.metric)}
    return frame


def table(frame: pd.DataFrame, markdown: bool = False) -> str:
    """The frame as text; — where there is nothing."""
    metrics: Mapping[str, str] = frame.attrs["metric"]
    spreads = {f"{metric} std" for metric in metrics}
    shown = [column for column in frame.columns if column not in (*spreads, "error")]
    leaves = [column.rsplit(".", 1)[-1] for column in shown]
    heads = [leaf if leaves.count(leaf) == 1 else full for leaf, full in zip(leaves, shown, strict=True)]
    body = [[_entry(row, column, metrics) for column in shown] for row in frame.to_dict(orient="records")]
    if not markdown:
        return text.columns([heads, *body])
    lines = [f"| {' | '.join(line)} |" for line in (heads, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""])


def _entry(row: Mapping[Any, Any], column: str, metrics: Mapping[str, str]) -> str:
    value = row[column]
    if column in metrics:
        return "—" if math.isnan(value) else score_text(value, row[f"{column} std"])
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "—"
    return value_text(value)
