"""Sweeps: which cells of a grid are left, running them, and the table of what came out."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl import checkpoint, runs
from rayfl.bookkeeping import Book
from rayfl.config import ExperimentConfig, SweepConfig
from rayfl.errors import UserError
from rayfl.progress import Progress, SweepProgress
from rayfl.report.table import cells_frame, coordinates, grid_table, value_label

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.tracking import Store


@dataclass(frozen=True)
class Plan:
    """What a sweep has to do. Cells go by their hash."""

    sweep: SweepConfig
    out: Path
    cells: Mapping[str, ExperimentConfig]
    labels: Mapping[str, str]
    todo: list[str]
    ended: list[str]
    limit: int | None
    """Most cells at once."""


@runs.kept_randomness()
def run_sweep(
    sweep: SweepConfig,
    out: str | Path,
    retry_failed: bool = False,
    max_concurrent: int | None = None,
    show: Progress | None = None,
) -> "pd.DataFrame":
    """Run the cells of a grid that have not ended yet; one row per cell comes back, whatever its status.

    A cell that fails or diverges stops no other. Interrupted, running cells keep their checkpoints and the
    same call goes on.
    """
    out = runs.prepare_out(out)
    show = show or SweepProgress()
    cells = {config.cell_hash: config for config in sweep.cells()}
    labels = _labels(cells, sweep)
    under_way = UserError(
        f"the sweep '{sweep.name}' is under way in '{out}': wait for it, or use another --out"
    )
    with runs.only_one(out / f".{sweep.name}.lock", under_way):
        stored = {key: runs.load(runs.cell_folder(out, key)) for key in cells}
        ended = [key for key, found in stored.items() if found and found.result.status in runs.ENDED]
        failed = [key for key, found in stored.items() if found and found.result.status == "FAILED"]
        todo = [key for key in cells if key not in ended and (retry_failed or key not in failed)]
        limit = max_concurrent or sweep.max_concurrent
        if todo:
            _run(Plan(sweep, out, cells, labels, todo, ended, limit), show)
        else:
            show.say(f"{sweep.name}: {len(cells)} cells: {len(ended)} finished, 0 to run")
        if failed and not retry_failed:
            names = ", ".join(labels[key] for key in failed)
            show.say(f"failed before and left alone (--retry-failed runs them again): {names}")
        stored = {key: runs.load(runs.cell_folder(out, key)) for key in cells}
        frame = cells_frame(sweep.name, list(cells.values()), sweep.grid, stored, sweep.when)
        text = f"# {sweep.name}\n\n{grid_table(frame).markdown()}"
        checkpoint.write_whole(out / f"{sweep.name}.md", text.encode())
    return frame


def _labels(cells: Mapping[str, ExperimentConfig], sweep: SweepConfig) -> dict[str, str]:
    labels: dict[str, str] = {}
    for key, config in cells.items():
        parts = []
        for axis, value in coordinates(config, sweep.grid).items():
            text = value_label(value)
            plain = isinstance(value, str) or axis == "algorithm.name"
            parts.append(text if plain else f"{axis.rsplit('.', 1)[-1]}={text}")
        label = " ".join(parts)
        labels[key] = label if label not in labels.values() else f"{label} ({key})"
    return labels


def _run(plan: Plan, show: Progress) -> None:
    # Tune takes seconds to import, which a sweep with nothing left to run need not spend.
    from rayfl import tuning
    from rayfl.actors.fleet import running_ray
    from rayfl.actors.placement import at_once, bundles, check_fits, nodes

    store, parent = _tracking(plan)
    status = "KILLED"
    try:
        with tuning.kept_signals(), running_ray():
            machines = nodes()
            needs = {key: bundles(plan.cells[key], machines) for key in plan.todo}
            for key, need in needs.items():
                check_fits(plan.labels[key], need, machines)
            most = min(at_once(list(needs.values()), machines), plan.limit or len(plan.todo))
            show.say(
                f"{plan.sweep.name}: {len(plan.cells)} cells: {len(plan.ended)} finished, "
                f"{len(plan.todo)} to run, {most} at once"
            )
            book = Book(plan, store, parent, show)
            show.begin(len(plan.todo))
            try:
                tuning.run_trials(plan, needs, book)
            finally:
                book.close()
                show.close()
            status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if store is not None and parent is not None:
            store.end(parent, status)


def _tracking(plan: Plan) -> "tuple[Store | None, str | None]":
    """The open store and the sweep's parent run."""
    config = plan.cells[plan.todo[0]].tracking
    if not config.enabled:
        return None, None
    from rayfl import tracking

    uri = tracking.store_uri(config, plan.out)
    store = tracking.prepare(uri, config.experiment, plan.out / "mlartifacts")
    tags = {
        "sweep": plan.sweep.name,
        "grid": json.dumps(plan.sweep.grid)[:5000],
        "rayfl_version": tracking.version(),
    }
    sha = tracking.git_sha(os.getcwd())
    key = hashlib.sha256(f"{plan.out}\n{plan.sweep.name}".encode()).hexdigest()[:16]
    parent = store.parent(plan.sweep.name, key, {**tags, "git_sha": sha} if sha else tags)
    return store, parent
