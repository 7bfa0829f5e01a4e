"""What earlier runs in the store came to, for a search that starts from them; and a member's values."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayfl.errors import UserError
from rayfl.tracking.names import metric_name
from rayfl.tracking.refusals import demanded
from rayfl.tracking.store import Store


@dataclass(frozen=True)
class EarlierRun:
    """One run."""

    params: Mapping[str, Any]
    """Its config by dotted path."""
    metrics: Mapping[str, float]
    """The last value of each metric, by MLflow's names."""
    status: str


def earlier_runs(store: Store, name: str) -> list[EarlierRun]:
    """The ended runs of a search or sweep of that name, or of an MLflow experiment.

    Raises UserError where the store has none of that name.
    """
    with demanded(store.outbox.uri):
        parents = [*store.find(search=name), *store.find(sweep=name)]
        found = [
            run for parent in parents for run in store.find(**{"mlflow.parentRunId": parent.info.run_id})
        ]
        if not parents:
            experiment = store.client.get_experiment_by_name(name)
            if experiment is None:
                raise _nothing(store, name)
            elsewhere = Store(store.client, experiment.experiment_id, store.outbox)
            found = [*elsewhere.find(status="FINISHED"), *elsewhere.find(status="DIVERGED")]
    runs = [EarlierRun(_plain(r.data.params), r.data.metrics, r.data.tags.get("status", "")) for r in found]
    return [run for run in runs if run.status in ("FINISHED", "DIVERGED")]


def last_value(run: EarlierRun, metric: str) -> float | None:
    """A metric by rayfl's name."""
    return run.metrics.get(metric_name(metric))


def tag_member(store: Store, run_id: str | None, number: int, values: Mapping[str, Any]) -> None:
    """Say of a member's run that it is no cell's, and which values it had last."""
    tags = {"cell_hash": "", "member": str(number), **{f"hp/{path}": f"{v:g}" for path, v in values.items()}}

    def write() -> None:
        for tag, value in tags.items():
            store.client.set_tag(run_id, tag, value)

    if run_id:
        store.outbox.send(write)


def _plain(params: Mapping[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, text in params.items():
        try:
            plain[key] = json.loads(text)
        except ValueError:
            plain[key] = text
    return plain


def _nothing(store: Store, name: str) -> UserError:
    experiments = [experiment.name for experiment in store.client.search_experiments()]
    runs = store.client.search_runs([store.experiment_id], "tags.sweep_key != ''", max_results=1000)
    known = sorted({*experiments, *(run.info.run_name for run in runs)})
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"
    return UserError(
        f"warm_start={name} names no search, sweep or MLflow experiment in '{store.uri}': {hint}"
    )
