"""Sweeps on Ray Tune: one trial per cell of the grid, one process reused from trial to trial. The only import
of ray.tune.

Cells are known by the hash of their config and keep their own results and checkpoints (see rayfl.runs), so
Tune's snapshots are not used: a re-issued sweep looks at the folders and runs what is left. The driver alone
writes to MLflow and ends cells; a trial's process trains, checkpoints and sends each round's numbers.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from filelock import FileLock, Timeout
from ray import cloudpickle, tune

from rayfl import algorithms, checkpoint, runs
from rayfl.actors.fleet import ENVIRONMENT, ensure_ray
from rayfl.actors.placement import choose_actors, nodes
from rayfl.config import ExperimentConfig, SweepConfig
from rayfl.errors import RunFailed, UserError
from rayfl.experiment import Experiment, Result
from rayfl.layout import spread_clients
from rayfl.progress import Progress, SweepProgress
from rayfl.report.table import cells_frame, coordinates, grid_table, value_label

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.tracking import RunLog, Store

BUSY = "BUSY"
"""The status of a cell that another process is at work on."""
MAX_DEATHS = 3
"""How often a cell goes on elsewhere after its process died. An exception is final at once."""
_REPORT_S = 0.5
"""Rounds that are quicker than this are sent several at a time."""
_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}
_LOG = logging.getLogger("rayfl.tuning")
Machine = Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """What a trial sends."""

    rows: list[dict[str, float]]
    partition_hash: str | None = None
    result: Result | None = None
    """Set with the last report."""
    error: str | None = None
    warnings: tuple[str, ...] = ()
    picture: Path | None = None


class Trial(tune.Trainable):
    """One cell after another in one process. ``config["cell"]`` is a hash; the cells themselves come once.

    It never raises: what breaks a cell is sent as its result, so that the process lives on for the next.
    """

    def setup(self, config: dict[str, Any], shared: bytes = b"", paths: Sequence[str] = ()) -> None:
        """Take up the first cell."""
        # The user's own modules must be found before anything that mentions them is unpacked.
        sys.path += [path for path in paths if path not in sys.path]
        os.environ.update(ENVIRONMENT)
        self._shared = shared
        self._cell: str = config["cell"]
        self._work: _Work | None = None

    def step(self) -> dict[str, Any]:
        """Some rounds, at least one."""
        try:
            if self._work is None:
                out, pictured, cells = cloudpickle.loads(self._shared)
                self._work = _Work(cells[self._cell], out, self._cell in pictured)
            report = self._work.advance()
        except Exception as failure:
            report = self._failed(failure)
        return {"report": report, "done": report.result is not None}

    def _failed(self, failure: Exception) -> Report:
        status = BUSY if isinstance(failure, runs.Busy) else "FAILED"
        known = isinstance(failure, UserError)
        error = str(failure) if known else runs.describe(failure)
        experiment = self._work.experiment if self._work is not None else None
        if experiment is None:
            return Report([], result=Result(status, 0, {}, [], "", self._cell, ""), error=error)
        result = runs.stopped(experiment, status)
        return Report(result.history, result.partition_hash, result, error)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up the next cell."""
        self.cleanup()
        self._cell = new_config["cell"]
        return True

    def cleanup(self) -> None:
        """Let go of the fleet and the claim on the cell."""
        if self._work is not None:
            self._work.close()
            self._work = None


class _Work:
    """A cell in progress."""

    def __init__(self, config: ExperimentConfig, out: Path, pictured: bool) -> None:
        self.experiment: Experiment | None = None
        self._out, self._pictured = out, pictured
        self._folder = runs.cell_folder(out, config.cell_hash)
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._warnings = stack.enter_context(_collected_warnings())
            stack.enter_context(runs.claim(self._folder))
            self.experiment = runs.begin(self._folder, config, resume=True)
            stack.callback(self.experiment.close)
            self._stack = stack.pop_all()
        self._rows = self.experiment.rounds(self._folder)
        self._unsent = list(self.experiment.history)

    def advance(self) -> Report:
        """Rounds until it is worth a report."""
        assert self.experiment is not None
        until = time.monotonic() + _REPORT_S
        result, picture = None, None
        with runs.disk_trouble(self._folder):
            for row in self._rows:
                self._unsent.append(row)
                if time.monotonic() >= until:
                    break
            if self.experiment.status != "RUNNING":
                result = runs.finish(self.experiment, self._folder)
                picture = runs.picture(self.experiment, self._out) if self._pictured else None
        rows, self._unsent = self._unsent, []
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return Report(rows, self.experiment.data.partition.hash, result, None, warnings, picture)

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """What rayfl warns of, for the driver to say: nobody sees a worker's stderr."""
    found: list[str] = []

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = _Handler(logging.WARNING)
    logging.getLogger("rayfl").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("rayfl").removeHandler(handler)


def bundles(config: ExperimentConfig, machines: Sequence[Machine]) -> list[dict[str, float]]:
    """What a trial reserves: itself, and, with a Ray fleet, one bundle per actor that asks for something."""
    fleet = config.fleet
    on_gpu = config.train.device.startswith("cuda")
    if fleet.kind == "local":
        gpus = (fleet.gpus_per_actor or 1.0) if on_gpu else 0.0
        return [_bundle(float(config.train.threads), gpus)]
    fleet = choose_actors(fleet, config.data.num_clients, [dict(machine) for machine in machines])
    clients = max(spread_clients(config.data.num_clients, fleet)) + 1
    needs = [_bundle(fleet.cpus_per_actor, fleet.gpus_per_actor)] * clients
    if fleet.placement == "separate":
        cast = algorithms.find(config.algorithm.name).cast()
        servers = config.data.num_edges * ("edge" in cast) + ("fed" in cast)
        if "main" in cast:
            per_client = getattr(cast["main"], "scope", "joint") == "per_client"
            servers += min(fleet.main_shards or clients, clients) if per_client else 1
        needs += [_bundle(fleet.cpus_per_server, fleet.gpus_per_server)] * servers
    needs = [need for need in needs if need]
    # The trial's own process needs no CPU, and Tune takes an empty first bundle for just that.
    return [{}, *needs] if needs else [{"CPU": 0.001}]


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}


def check_fits(label: str, need: Sequence[Mapping[str, float]], machines: Sequence[Machine]) -> None:
    """Refuse a trial that could never start, with both numbers."""
    for kind in ("CPU", "GPU"):
        wants = sum(bundle.get(kind, 0.0) for bundle in need)
        has = sum(machine.get(kind, 0.0) for machine in machines)
        most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
        largest = max((bundle.get(kind, 0.0) for bundle in need), default=0.0)
        if wants > has + 1e-9 or largest > most + 1e-9:
            raise UserError(
                f"the cell '{label}' asks for {wants:g} {kind}, the cluster has {has:g} (at most "
                f"{most:g} on one machine): lower fleet.client_actors, "
                f"fleet.{kind.lower()}s_per_actor or train.threads"
            )


def at_once(needs: Sequence[Sequence[Mapping[str, float]]], machines: Sequence[Machine]) -> int:
    """How many of the cells, in order, the cluster takes at the same time."""
    free = {kind: sum(machine.get(kind, 0.0) for machine in machines) for kind in ("CPU", "GPU")}
    count = 0
    for need in needs:
        for kind in free:
            free[kind] -= sum(bundle.get(kind, 0.0) for bundle in need)
        if min(free.values()) < -1e-9:
            break
        count += 1
    return max(count, 1)


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
    with _only_one(out, sweep.name):
        stored = {key: runs.load(runs.cell_folder(out, key)) for key in cells}
        ended = [key for key, found in stored.items() if found and found.result.status in runs.ENDED]
        failed = [key for key, found in stored.items() if found and found.result.status == "FAILED"]
        todo = [key for key in cells if key not in ended and (retry_failed or key not in failed)]
        limit = max_concurrent or sweep.max_concurrent
        if todo:
            _run(_Plan(sweep, out, cells, labels, todo, ended, limit), show)
        else:
            show.say(f"{sweep.name}: {len(cells)} cells: {len(ended)} finished, 0 to run")
        if failed and not retry_failed:
            names = ", ".join(labels[key] for key in failed)
            show.say(f"failed before and left alone (--retry-failed runs them again): {names}")
        stored = {key: runs.load(runs.cell_folder(out, key)) for key in cells}
        frame = cells_frame(sweep.name, list(cells.values()), sweep.grid, stored)
        text = f"# {sweep.name}\n\n{grid_table(frame).markdown()}"
        checkpoint.write_whole(out / f"{sweep.name}.md", text.encode())
    return frame


@dataclass(frozen=True)
class _Plan:
    sweep: SweepConfig
    out: Path
    cells: Mapping[str, ExperimentConfig]
    labels: Mapping[str, str]
    todo: list[str]
    ended: list[str]
    limit: int | None


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


@contextlib.contextmanager
def _only_one(out: Path, name: str) -> Iterator[None]:
    lock = FileLock(out / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"the sweep '{name}' is under way in '{out}': wait for it, or use another --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _run(plan: _Plan, show: Progress) -> None:
    store, parent = _tracking(plan)
    status = "KILLED"
    handlers = _signal_handlers()
    try:
        ours = ensure_ray()
        try:
            machines = nodes()
            needs = {key: bundles(plan.cells[key], machines) for key in plan.todo}
            for key, need in needs.items():
                check_fits(plan.labels[key], need, machines)
            most = min(at_once(list(needs.values()), machines), plan.limit or len(plan.todo))
            show.say(
                f"{plan.sweep.name}: {len(plan.cells)} cells: {len(plan.ended)} finished, "
                f"{len(plan.todo)} to run, {most} at once"
            )
            book = _Book(plan, store, parent, show)
            show.begin(len(plan.todo))
            try:
                _tune(plan, needs, book)
            finally:
                book.close()
                show.close()
            status = "FINISHED"
        finally:
            if ours:
                ray.shutdown()
    except Exception:
        status = "FAILED"
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if store is not None and parent is not None:
            store.end(parent, status)


def _tracking(plan: _Plan) -> "tuple[Store | None, str | None]":
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


def _signal_handlers() -> dict[int, Any]:
    """Ray and Tune put their own in place of the caller's."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    return {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}


def _tune(plan: _Plan, needs: Mapping[str, list[dict[str, float]]], book: "_Book") -> None:
    """Hand the cells to Tune and wait for the last."""
    scratch = plan.out / f".tune-{plan.sweep.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    shared: bytes = cloudpickle.dumps((plan.out, book.pictured, {key: plan.cells[key] for key in plan.todo}))
    paths = [os.path.abspath(path) for path in sys.path]
    trainable = tune.with_resources(
        tune.with_parameters(Trial, shared=shared, paths=paths),
        lambda config: tune.PlacementGroupFactory(needs[config["cell"]]),
    )
    try:
        with _environment(), _on_interrupt(book.interrupt):
            tune.run(
                trainable,
                config={"cell": tune.grid_search(plan.todo)},
                name="trials",
                storage_path=str(scratch),
                callbacks=[book],
                stop=_Stopper(book),
                max_failures=MAX_DEATHS,
                max_concurrent_trials=plan.limit,
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=0,
            )
    except tune.TuneError as error:
        raise RunFailed(f"Ray Tune gave up: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if book.interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Tune as a quiet scheduler, for as long as it runs."""
    before = {name: os.environ.get(name) for name in _TUNE}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(_TUNE)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _on_interrupt(tell: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C ends the sweep in order, a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tell()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Stopper(tune.Stopper):
    """Ends the sweep when it was interrupted."""

    def __init__(self, book: "_Book") -> None:
        self._book = book

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._book.interrupted


@dataclass
class _Cell:
    """What the driver knows of a cell under way."""

    log: "RunLog | None"
    history: list[dict[str, float]] = field(default_factory=list)
    partition_hash: str = ""


class _Book(tune.Callback):
    """Keeps the books while trials run: MLflow, results, progress."""

    def __init__(self, plan: _Plan, store: "Store | None", parent: str | None, show: Progress) -> None:
        self._plan, self._store, self._parent, self._show = plan, store, parent, show
        self._open: dict[str, _Cell] = {}
        self._said: set[str] = set()
        self.interrupted = False
        self._children: dict[str, str] = {}
        if store is not None and parent is not None:
            self._children = store.children(parent)
            for key in plan.ended:
                found = runs.load(runs.cell_folder(plan.out, key))
                if found is not None and found.result.run_id and key not in self._children:
                    store.adopt(found.result.run_id, parent)
        self.pictured = self._choose_pictures()

    def _choose_pictures(self) -> frozenset[str]:
        """A picture costs as much as a tiny cell, so each way of dividing the data has one, not each seed."""
        if self._store is None:
            return frozenset()
        first: dict[object, str] = {}
        for key in self._plan.todo:
            first.setdefault(self._plan.cells[key].data, key)
        done = {self._plan.cells[key].data for key in self._plan.ended}
        return frozenset(key for data, key in first.items() if data not in done)

    def interrupt(self) -> None:
        """End what is running."""
        self.interrupted = True

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Several times a second."""
        self._show.tick()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Rounds came in."""
        report: Report = result.pop("report")
        key: str = trial.config["cell"]
        for warning in report.warnings:
            self._say_once(f"{self._plan.labels[key]}: {warning}")
        if report.result is not None and report.result.status == BUSY:
            self._show.end(self._plan.labels[key], BUSY, {})
            self._say_once(f"{self._plan.labels[key]}: {report.error}")
            return
        cell = self._cell(key)
        cell.partition_hash = report.partition_hash or cell.partition_hash
        known = cell.history[-1]["round"] if cell.history else -1
        fresh = [row for row in report.rows if row["round"] > known]
        cell.history += fresh
        for row in fresh:
            self._show.row(self._plan.labels[key], self._plan.cells[key].rounds, row)
        if report.result is not None:
            self._end(key, report.result, report.error)
            if report.picture is not None and self._store is not None and self._parent is not None:
                self._store.attach(self._parent, report.picture)
        elif cell.log is not None and fresh:
            cell.log.rows(fresh, cell.partition_hash)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The process of a trial died; Tune starts another."""
        label = self._plan.labels[trial.config["cell"]]
        self._show.say(f"{label}: its process died, going on from the last checkpoint")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The process of a trial died too often."""
        key = trial.config["cell"]
        error = f"the process died {MAX_DEATHS + 1} times (killed, or out of memory): see fleet and train"
        self._end(key, self._stopped(key, "FAILED"), error)

    def close(self) -> None:
        """Cells that are still open were cut short; their checkpoints stay."""
        for key in list(self._open):
            self._end(key, self._stopped(key, "KILLED"), None)
        if self.interrupted:
            self._show.say("interrupted: run the same sweep again to go on from the last checkpoints")

    def _cell(self, key: str) -> _Cell:
        if key not in self._open:
            log = None
            if self._store is not None:
                from rayfl import tracking

                config, label = self._plan.cells[key], self._plan.labels[key]
                log = tracking.RunLog(self._store, config, self._children.get(key), self._parent, label)
                self._children[key] = log.run_id
                runs.write_run_id(runs.cell_folder(self._plan.out, key), self._store.uri, log.run_id)
            self._open[key] = _Cell(log)
        return self._open[key]

    def _stopped(self, key: str, status: str) -> Result:
        cell = self._cell(key)
        last = dict(cell.history[-1]) if cell.history else {}
        done = int(last.get("round", 0))
        return Result(status, done, last, cell.history, "", key, cell.partition_hash)

    def _end(self, key: str, result: Result, error: str | None) -> None:
        cell = self._cell(key)
        folder = runs.cell_folder(self._plan.out, key)
        if cell.log is not None:
            result = dataclasses.replace(result, run_id=cell.log.run_id)
            cell.log.end(result, folder, error)
        try:
            runs.store(folder, self._plan.cells[key], result, error)
        except OSError as trouble:
            self._say_once(f"can't write '{folder}' ({trouble.strerror}): its cell counts as not run")
        del self._open[key]
        self._show.end(self._plan.labels[key], result.status, result.metrics)
        if error:
            self._show.say(f"{self._plan.labels[key]}: {error.splitlines()[-1]}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._show.say(line)
