"""The table of a sweep: mean and spread over seeds, methods by settings."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from rayfl.config import ExperimentConfig, When, flatten
from rayfl.data import named
from rayfl.runs import Stored
from rayfl.tasks import headline

_LAST10 = "final/last10_"
PENDING = "PENDING"
"""The status of a cell that has not run."""
_IN_PERCENT = ("accuracy", "dice", "iou")
_METHOD, _SEED = "algorithm.name", "seed"


def value_label(value: Any) -> str:
    """A grid value as people say it: ``{kind: dirichlet, alpha: 0.1}`` is ``dirichlet alpha=0.1``."""
    if isinstance(value, Mapping):
        parts = []
        for key, item in flatten(value).items():
            leaf = key.rsplit(".", 1)[-1]
            parts.append(str(item) if leaf in ("kind", "name") else f"{leaf}={value_label(item)}")
        return " ".join(parts)
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def coordinates(config: ExperimentConfig, grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Where a cell stands in the grid: axis -> value, mappings by their label."""
    flat = flatten(config.to_dict())
    place: dict[str, Any] = {}
    for axis, values in grid.items():
        matches = []
        for value in values:
            leaves = flatten({axis: value})
            # A method without a knob falls back to not having it, so absent keys don't speak against.
            if all(flat.get(key, item) == _as_json(item) for key, item in leaves.items()):
                matches.append((len(leaves), value))
        value = max(matches, key=lambda match: match[0])[1] if matches else flat.get(axis)
        place[axis] = value_label(value) if isinstance(value, Mapping | list | tuple) else value
    return place


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def cells_frame(
    name: str,
    cells: Sequence[ExperimentConfig],
    grid: Mapping[str, Sequence[Any]],
    stored: Mapping[str, Stored | None],
    when: Sequence[When] = (),
) -> pd.DataFrame:
    """One row per cell: place in the grid, seed, status, final metrics, bytes, MLflow run, fingerprint."""
    rows = []
    quoted = (headline(found.result.metrics, _LAST10) for found in stored.values() if found is not None)
    names = list(dict.fromkeys(metric[0] for metric in quoted if metric is not None)) or ["accuracy"]
    first = [prefix + kind for kind in names for prefix in (_LAST10, "final/", "final/best_")]
    first += ["final/best_round", "global/test_loss"]
    for config in cells:
        found = stored.get(config.cell_hash)
        row: dict[str, Any] = {**coordinates(config, grid), _SEED: config.seed}
        row["status"] = PENDING if found is None else found.result.status
        metrics = {} if found is None else found.result.metrics
        row["rounds"] = 0 if found is None else found.result.rounds
        row.update({key: metrics.get(key, math.nan) for key in first})
        row["comm/total_bytes"] = metrics.get("comm/total_bytes", math.nan)
        row.update({key: value for key, value in metrics.items() if key.startswith("final/")})
        row["run_id"] = None if found is None else found.result.run_id
        row["weights_sha256"] = "" if found is None else found.result.weights_sha256
        row["cell_hash"] = config.cell_hash
        row["error"] = "" if found is None or not found.error else found.error.splitlines()[-1]
        rows.append(row)
    frame = pd.DataFrame(rows)
    axes = {axis: [value_label(value) for value in values] for axis, values in grid.items()}
    rules = "".join(f"; {_said(rule.set)} where {_said(rule.condition)}" for rule in when)
    frame.attrs = {"name": name, "axes": axes, "caption": caption(cells) + rules, "headline": names[0]}
    return frame


def _said(settings: Mapping[str, Any]) -> str:
    """Settings in words: "algorithm.intervals=[5, 5]"."""
    return " and ".join(
        f"{key} {value_label(value)}" if isinstance(value, Mapping) else f"{key}={value_label(value)}"
        for key, value in settings.items()
    )


def caption(cells: Sequence[ExperimentConfig]) -> str:
    """What the numbers stand on; settings that vary over the cells are listed."""
    flats = [flatten(cell.to_dict()) for cell in cells]

    def values(key: str) -> str:
        seen = dict.fromkeys(value_label(flat[key]) for flat in flats if flat.get(key) is not None)
        return "/".join(seen)

    laws = dict.fromkeys(_law(cell) for cell in cells)
    seeds = len({cell.seed for cell in cells})
    return (
        f"{values('data.name')}; {' / '.join(laws)}; {values('data.num_clients')} clients, "
        f"participation {values('algorithm.participation')}; E={values('algorithm.local_epochs')}, "
        f"B={values('algorithm.batch_size')}, {values('rounds')} round{'s' * (values('rounds') != '1')}; "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )


def _law(config: ExperimentConfig) -> str:
    law = config.data.partition
    if law.kind == "dirichlet":
        return f"dirichlet ({law.scheme}) alpha={law.alpha:g}"
    return named(law)


@dataclass(frozen=True)
class Entry:
    """One number of the table and how it is to be read."""

    text: str
    mean: float | None = None
    """None where the entry can't be compared: not run, or a seed diverged."""
    rank: int = field(default=0, compare=False)
    """1 for the best of its column, 2 for the second, else 0."""


@dataclass(frozen=True)
class Grid:
    """Methods in rows, all other axes in columns."""

    caption: str
    columns: list[str]
    rows: list[str]
    entries: dict[tuple[str, str], Entry]

    def markdown(self) -> str:
        """GitHub Markdown: best bold, second underlined."""
        styles = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
        lines = ["| " + " | ".join(["method", *self.columns]) + " |"]
        lines.append("|" + "---|" + "---:|" * len(self.columns))
        for row in self.rows:
            cells = [self.entries[row, column] for column in self.columns]
            body = " | ".join(styles[entry.rank].format(entry.text) for entry in cells)
            lines.append(f"| {row} | {body} |")
        return "\n".join([*lines, "", self.caption, ""])

    def plain(self, colour: bool = False) -> str:
        """Aligned text; with ``colour``, the best bold and the second underlined as terminals do it."""
        first = ["method", *self.rows]
        blocks = [[text.ljust(max(map(len, first))) for text in first]]
        for column in self.columns:
            texts = [column, *(self.entries[row, column].text for row in self.rows)]
            width = max(map(len, texts))
            padded = [text.rjust(width) for text in texts]
            for at, row in enumerate(self.rows, start=1):
                rank = self.entries[row, column].rank
                if colour and rank:
                    blank = width - len(texts[at])
                    padded[at] = " " * blank + f"\x1b[{1 if rank == 1 else 4}m{texts[at]}\x1b[0m"
            blocks.append(padded)
        lines = ["  ".join(parts).rstrip() for parts in zip(*blocks, strict=True)]
        return "\n".join([*lines, self.caption])


def grid_table(frame: pd.DataFrame, metric: str | None = None) -> Grid:
    """Mean ± sample standard deviation over seeds, of the task's headline metric unless told; in % where
    that is usual.

    "—" has not run; "†" has fewer seeds than the others; "✗" diverged, with the number of seeds
    that did where others did not: those are left out of the mean, so such an entry is never the best.
    """
    name = frame.attrs.get("headline", "accuracy")
    metric = metric or _LAST10 + name
    axes: dict[str, list[str]] = frame.attrs.get("axes") or {
        axis: list(dict.fromkeys(map(value_label, frame[axis])))
        for axis in frame.columns[: list(frame.columns).index(_SEED)]
    }
    others = [axis for axis in axes if axis not in (_METHOD, _SEED)]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    rows: dict[str, None] = dict.fromkeys(axes.get(_METHOD, []))
    columns: dict[str, None] = {}
    records: list[dict[str, Any]] = [dict(zip(frame.columns, line, strict=True)) for line in frame.values]
    for record in records:
        row = str(record[_METHOD]) if _METHOD in axes else str(frame.attrs.get("name", "all"))
        column = ", ".join(_column(axis, record[axis]) for axis in others) or name
        rows.setdefault(row)
        columns.setdefault(column)
        groups.setdefault((row, column), []).append(record)
    seeds = max((len(group) for group in groups.values()), default=0)
    entries = {
        (row, column): _entry(groups.get((row, column), []), seeds, metric)
        for row in rows
        for column in columns
    }
    for column in columns:
        entries.update(_ranked({(row, column): entries[row, column] for row in rows}))
    text = str(frame.attrs.get("caption", f"{seeds} seeds"))
    marks = "".join(_legend([entry.text for entry in entries.values()]))
    spread = "mean ± sample std over seeds" if seeds > 1 else "one seed"
    what = f"test {name} in %, last 10 evaluated rounds" if metric == _LAST10 + name else metric
    return Grid(f"{what}, {spread}; {text}{marks}", list(columns), list(rows), entries)


def _column(axis: str, value: Any) -> str:
    text = value_label(value)
    return text if isinstance(value, str) else f"{axis.rsplit('.', 1)[-1]}={text}"


def _entry(group: Sequence[Mapping[str, Any]], seeds: int, metric: str) -> Entry:
    diverged = sum(record["status"] == "DIVERGED" for record in group)
    scale = 100.0 if metric.endswith(_IN_PERCENT) else 1.0
    values = [
        scale * record[metric]
        for record in group
        if record["status"] == "FINISHED" and math.isfinite(record[metric])
    ]
    if not values:
        return Entry("✗" if diverged else "—")
    mean = statistics.fmean(values)
    text = f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {statistics.stdev(values):.2f}"
    if diverged:
        text += f" ✗{diverged}"
    elif len(values) < seeds:
        text += " †"
    return Entry(text, None if diverged else mean)


def _ranked(column: Mapping[tuple[str, str], Entry]) -> Iterator[tuple[tuple[str, str], Entry]]:
    """Ties go by the digits shown."""
    shown = sorted({round(e.mean, 2) for e in column.values() if e.mean is not None}, reverse=True)
    for key, entry in column.items():
        rank = 0
        if len(column) > 1 and entry.mean is not None:
            place = shown.index(round(entry.mean, 2)) + 1
            rank = place if place <= 2 else 0
        yield key, Entry(entry.text, entry.mean, rank)


def _legend(texts: Sequence[str]) -> Iterator[str]:
    for mark, meaning in {"—": "not run", "†": "fewer seeds", "✗": "diverged"}.items():
        if any(mark in text for text in texts):
            yield f"; {mark} {meaning}"
