"""Searches: what is left to run, running it, and the table and presets of what came out."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl import checkpoint, runs
from rayfl.bookkeeping import Book
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.progress import Progress, Silent, SweepProgress
from rayfl.report.search import table, trials_frame
from rayfl.search.best import ranks, values_of, write_presets
from rayfl.search.checks import check_search
from rayfl.search.config import SearchConfig
from rayfl.search.driver import Driver
from rayfl.search.population import Members
from rayfl.search.record import Record, search_folder
from rayfl.search.samples import Samples
from rayfl.search.study import Study
from rayfl.search.trial import OPEN, Trial
from rayfl.search.warm import known_results
from rayfl.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.tracking import Store


@dataclass(frozen=True)
class Found:
    """What a search has found so far."""

    trials: "pd.DataFrame"
    """One row per trial: see rayfl.report.search."""
    presets: list[Path]
    """Of the best trial, or of the Pareto front; empty if no trial ran to its end."""
    best: list[dict[str, Any]]
    """Of each preset: trial, values, and the mean of every metric over seeds, those of test rows too."""
    over: str
    """hours, if they ended the call before the last trial."""


@runs.kept_randomness()
def run_search(
    search: SearchConfig,
    out: str | Path,
    retry_failed: bool = False,
    max_concurrent: int | None = None,
    show: Progress | None = None,
) -> Found:
    """Run the trials of a search that have not ended yet, and say what is best.

    A trial that fails or diverges stops no other. Interrupted, running trials keep their checkpoints and the
    same call goes on.
    """
    if max_concurrent is not None:
        search = dataclasses.replace(search, max_concurrent=max_concurrent)
    check_search(search)
    out = runs.prepare_out(out)
    show = show or SweepProgress()
    folder = search_folder(out, search.name)
    folder.mkdir(parents=True, exist_ok=True)
    under_way = UserError(
        f"the search '{search.name}' is under way in '{out}': wait for it, or use another --out"
    )
    with runs.only_one(folder / ".lock", under_way):
        record = Record(search, folder)
        for trial in record:
            if trial.status == "FAILED" and retry_failed:
                record.set(trial, OPEN)
        store, parent = _tracking(search, out)
        driver = _driver(search, out, folder, record, store, show)
        status = "KILLED"
        try:
            _run(driver, store, parent, max_concurrent, show)
            status = "FINISHED" if driver.over != "interrupt" else "KILLED"
        except Exception:
            status = "FAILED"
            raise
        finally:
            if store is not None and parent is not None:
                store.end(parent, status)
            found = _found(driver, folder)
        if driver.over == "interrupt":
            raise KeyboardInterrupt
    return found


def _driver(
    search: SearchConfig, out: Path, folder: Path, record: Record, store: "Store | None", show: Progress
) -> "Samples | Members":
    if search.scheduler == "pbt":
        return Members(search, out, folder, record, show)
    space = search.space()
    study = Study(search, space)
    if search.warm_start is not None:
        if store is None:
            raise UserError("warm_start reads MLflow, got tracking.enabled=false: leave one of them out")
        from rayfl.tracking.searches import earlier_runs

        results, passed = known_results(search, space, earlier_runs(store, search.warm_start))
        study.learn(results)
        outside = f", {passed} passed over: not of this space" if passed else ""
        show.say(
            f"{search.name}: {counted(len(results), 'sample')} known from '{search.warm_start}'{outside}"
        )
    return Samples(search, out, record, study, show)


def _run(
    driver: "Samples | Members",
    store: "Store | None",
    parent: str | None,
    limit: int | None,
    show: Progress,
) -> None:
    search, ended = driver.search, sum(trial.status != OPEN for trial in driver.record)
    folder_of = driver.folder_of if isinstance(driver, Members) else None
    driver.store, driver.book = store, Book(driver.cells, store, parent, _Said(show), folder_of)
    trial = driver.next() if isinstance(driver, Samples) else next(iter(driver.left), None)
    if trial is None:
        show.say(f"{search.name}: {counted(ended, 'trial')} ended, 0 to run")
        return
    # Tune takes seconds to import, which a search with nothing left to run need not spend.
    from rayfl import tuning
    from rayfl.actors.fleet import running_ray
    from rayfl.actors.placement import at_once, bundles, check_fits, nodes
    from rayfl.tuning.population import run_members
    from rayfl.tuning.samples import run_samples

    with tuning.kept_signals(), running_ray():
        machines = nodes()

        def need(trial: Trial) -> Any:
            needs = bundles(search.configs(trial.sample)[0], machines)
            check_fits(driver.name(trial), needs, machines)
            return needs

        most = min(at_once([need(trial)] * driver.todo, machines), search.max_concurrent or driver.todo)
        show.say(f"{search.name}: {counted(ended, 'trial')} ended, {driver.todo} to run, {most} at once")
        show.begin(driver.todo)
        try:
            if isinstance(driver, Samples):
                run_samples(driver, trial, need, most)
            else:
                run_members(driver, need(trial))
        finally:
            driver.book.close()
            show.close()
    if driver.over:
        left = sum(trial.status == OPEN for trial in driver.record)
        why = "interrupted" if driver.over == "interrupt" else f"{search.hours:g} hours are over"
        show.say(f"{why}: {counted(left, 'trial')} half-done, run the same search again to go on")


class _Said(Silent):
    """What is said of single cells goes through; progress is shown by trial, and without test figures."""

    def __init__(self, show: Progress) -> None:
        self._show = show

    def say(self, line: str) -> None:
        self._show.say(line)


def _found(driver: Driver, folder: Path) -> Found:
    """The table, and the best as presets; both are on disk."""
    search, trials = driver.search, list(driver.record)
    outcomes = {trial.number: driver.outcome(trial) for trial in trials}
    finished = {t.number: outcomes[t.number] for t in trials if t.status == "FINISHED"}
    places = ranks(search, finished)
    configs = {trial.number: _config(driver, trial) for trial in trials}
    values = {t.number: values_of(search, t, configs[t.number]) for t in trials}
    frame = trials_frame(search, [(t, outcomes[t.number], values[t.number]) for t in trials], places)
    chosen = [trials[number] for number in frame.loc[frame["rank"] == 1, "trial"]]
    if len(search.metric) == 1:
        chosen = chosen[:1]
    presets = write_presets(search, folder, [(t, outcomes[t.number], configs[t.number]) for t in chosen])
    best = [
        {"trial": t.number, "values": values[t.number], "metrics": _last(driver, t), "preset": str(path)}
        for t, path in zip(chosen, presets, strict=True)
    ]
    frame.attrs["best"] = best
    text = f"# {search.name}\n\n{table(frame, markdown=True)}"
    checkpoint.write_whole(folder.parent / f"{search.name}.md", text.encode())
    return Found(frame, presets, best, driver.over)


def _config(driver: Driver, trial: Trial) -> ExperimentConfig:
    """The config of the first seed, under the values that the trial has now."""
    if isinstance(driver, Members):
        return driver.cells.cells[driver.keys(trial)[0]]
    return driver.search.configs(trial.sample)[0]


def _last(driver: Driver, trial: Trial) -> dict[str, float]:
    """The mean over seeds of every metric of the last round."""
    rows = [found.result.history[-1] for found in driver.stored(trial) if found is not None]
    shared = [key for key in rows[0] if all(key in row for row in rows)] if rows else []
    return {key: sum(row[key] for row in rows) / len(rows) for key in shared if key != "round"}


def _tracking(search: SearchConfig, out: Path) -> "tuple[Store | None, str | None]":
    """The open store and the search's parent run."""
    config = search.configs({})[0].tracking
    if not config.enabled:
        return None, None
    from rayfl import tracking

    uri = tracking.store_uri(config, out)
    store = tracking.prepare(uri, config.experiment, out / "mlartifacts")
    asked = {path: dataclasses.asdict(domain) for path, domain in search.search.items()}
    tags = {
        "search": search.name,
        "space": json.dumps(asked)[:5000],
        "metric": json.dumps(dict(search.metric)),
        "rayfl_version": tracking.version(),
    }
    sha = tracking.git_sha(os.getcwd())
    key = hashlib.sha256(f"{out}\nsearch {search.name}".encode()).hexdigest()[:16]
    return store, store.parent(search.name, key, {**tags, "git_sha": sha} if sha else tags)
