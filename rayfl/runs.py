"""Runs on disk: one cell is one folder, and what is in it is whole.

<out>/cells/<cell hash>/config.json       the resolved config
                        checkpoint-*.pt   the last two states, while the cell is under way
                        run.json          its MLflow run
                        result.json       status, metrics, history: the cell has ended
                        weights.pt        the global model
                        ledger.parquet    bytes by round, phase, link, direction and kind
                        confusion.csv     rows are true classes
                        clients.csv       each client's samples, test rows and accuracy (or Dice) on them
                        *.png             the method's own pictures, where it has some
"""

import csv
import dataclasses
import errno
import functools
import io
import json
import logging
import math
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from rayfl import checkpoint, data, pictures
from rayfl.config import ExperimentConfig
from rayfl.errors import RunFailed, UserError
from rayfl.experiment import Experiment, Observer, Result, check_fleet

if TYPE_CHECKING:
    from rayfl.tracking import MLflowObserver

ENDED = ("FINISHED", "DIVERGED")
"""Statuses of a cell that never runs again."""
_LOG = logging.getLogger("rayfl.runs")


@dataclass(frozen=True)
class Stored:
    """A cell's result.json."""

    result: Result
    config: dict[str, Any]
    error: str | None


def prepare_out(out: str | Path) -> Path:
    """The absolute output folder, made where it is missing and known to be writable."""
    if not str(out):
        raise UserError("the output folder has no name: give one, e.g. --out results")
    path = Path(out).expanduser().absolute()
    try:
        (path / "cells").mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(
            f"can't write to the output folder '{path}' ({error.strerror or error}): choose another "
            f"with --out"
        ) from error
    return path


def cell_folder(out: Path, cell_hash: str) -> Path:
    """Where a cell lives."""
    return out / "cells" / cell_hash


class Busy(UserError):
    """Another process is at work on this cell."""


@contextmanager
def claim(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only process at work on a cell; whoever holds it has ``wait_s`` to let go."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = Busy(
        f"another process is at work on this experiment in '{folder}': wait for it, or use another --out"
    )
    with only_one(folder / ".lock", busy, wait_s):
        yield


@contextmanager
def only_one(path: Path, taken: UserError, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock file, or raise."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout as error:
        raise taken from error
    try:
        yield
    finally:
        lock.release()


def load(folder: Path) -> Stored | None:
    """What a cell came to; None if it has not ended, or if its record is damaged (which is said)."""
    try:
        plain = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        fields = {field.name: plain[field.name] for field in dataclasses.fields(Result)}
        fields["metrics"] = _numbers(plain["metrics"])
        fields["history"] = [_numbers(row) for row in plain["history"]]
        return Stored(Result(**fields), plain["config"], plain["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("%s is damaged (%s): the cell counts as not run", folder / "result.json", error)
        return None


def store(folder: Path, config: ExperimentConfig, result: Result, error: str | None = None) -> None:
    """Write a cell's result. A cell that has ended needs its checkpoints no more."""
    plain = dataclasses.asdict(result)
    plain["metrics"] = _plain(result.metrics)
    plain["history"] = [_plain(row) for row in result.history]
    plain.update(config=config.to_dict(), error=error)
    checkpoint.write_whole(folder / "result.json", json.dumps(plain, indent=1, allow_nan=False).encode())
    if result.status in ENDED:
        checkpoint.clear(folder)


def _plain(row: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no NaN and no infinity: they are written as text."""
    return {key: value if math.isfinite(value) else str(value) for key, value in row.items()}


def _numbers(row: Mapping[str, float | str]) -> dict[str, float]:
    return {key: float(value) if isinstance(value, str) else value for key, value in row.items()}


def begin(folder: Path, config: ExperimentConfig, resume: bool) -> Experiment:
    """The experiment of a cell, at its last whole checkpoint where resuming, else at round 0."""
    checkpoint.clean(folder)
    experiment = Experiment(config)
    try:
        state = checkpoint.load_latest(folder) if resume else None
        if state is not None:
            experiment.load_state_dict(state)
            _LOG.info("going on from round %d", experiment.round)
        elif not resume:
            checkpoint.clear(folder)
        (folder / "result.json").unlink(missing_ok=True)
        content = json.dumps(config.to_dict(), indent=1).encode()
        checkpoint.write_whole(folder / "config.json", content)
    except BaseException:
        experiment.close()
        raise
    return experiment


def finish(experiment: Experiment, folder: Path) -> Result:
    """Write the files of an experiment that has ended and return its result."""
    result = experiment.result()
    buffer = io.BytesIO()
    torch.save(experiment.weights(), buffer)
    checkpoint.write_whole(folder / "weights.pt", buffer.getvalue())
    write_ledger(experiment, folder / "ledger.parquet")
    for name, table in experiment.tables.items():
        text = io.StringIO()
        csv.writer(text).writerows(table)
        checkpoint.write_whole(folder / f"{name}.csv", text.getvalue().encode())
    pictures.draw(experiment.algorithm.pictures, experiment.history, folder)
    return result


def stopped(experiment: Experiment, status: str) -> Result:
    """What there is to tell of an experiment that did not get to its end."""
    history = list(experiment.history)
    return Result(
        status=status,
        rounds=int(history[-1]["round"]) if history else 0,
        metrics=dict(history[-1]) if history else {},
        history=history,
        weights_sha256="",
        cell_hash=experiment.config.cell_hash,
        partition_hash=experiment.data.partition.hash,
    )


def write_ledger(experiment: Experiment, path: Path) -> None:
    """The ledger as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("round", "phase", "link", "direction", "kind", "bytes")
    rows = list(experiment.ledger.rows())
    types = [pa.int64(), pa.string(), pa.string(), pa.string(), pa.string(), pa.int64()]
    columns = {
        name: pa.array([row[name] for row in rows], type=kind)
        for name, kind in zip(names, types, strict=True)
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    checkpoint.write_whole(path, sink.getvalue().to_pybytes())


def picture(experiment: Experiment, out: Path) -> Path:
    """The picture of who holds what, drawn once per partition and output folder."""
    divided, train, config = experiment.data.partition, experiment.data.train, experiment.config
    path = out / "partitions" / f"{divided.hash}.png"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            drawn = Path(scratch) / path.name
            data.draw_partition(
                divided,
                train.labels,
                train.num_classes,
                drawn,
                data.describe(config.data, config.seed),
                domains=train.domains,
                domain_names=train.domain_names,
            )
            checkpoint.write_whole(path, drawn.read_bytes())
    return path


@contextmanager
def kept_randomness() -> Iterator[None]:
    """The caller's random numbers go on as if nothing had run: Ray draws some of them."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


@kept_randomness()
def execute(
    config: ExperimentConfig, out: str | Path, resume: bool = False, observers: Sequence[Observer] = ()
) -> Result:
    """Run one experiment in ``out`` and keep what comes of it.

    With ``resume`` a finished experiment is not run again and a half-done one goes on from its last
    checkpoint, in the same MLflow run; without, it starts anew. Raises UserError for what can't be done and
    RunFailed, or what the method itself raised, for what broke; either way the folder tells.
    """
    out = prepare_out(out)
    folder = cell_folder(out, config.cell_hash)
    with claim(folder):
        stored = load(folder) if resume else None
        if stored is not None and stored.result.status in ENDED:
            _LOG.info("this experiment has ended before: here is its result")
            return stored.result
        check_fleet(config)
        tracker = _tracker(config, out, folder, resume)
        with disk_trouble(folder):
            experiment = begin(folder, config, resume)
            try:
                return _run(experiment, out, folder, tracker, observers)
            finally:
                experiment.close()


def _tracker(config: ExperimentConfig, out: Path, folder: Path, resume: bool) -> "MLflowObserver | None":
    if not config.tracking.enabled:
        return None
    from rayfl import tracking

    uri = tracking.store_uri(config.tracking, out)
    store = tracking.prepare(uri, config.tracking.experiment, out / "mlartifacts")
    return tracking.MLflowObserver(store, read_run_id(folder, store.uri) if resume else None, folder)


def _run(
    experiment: Experiment,
    out: Path,
    folder: Path,
    tracker: "MLflowObserver | None",
    observers: Sequence[Observer],
) -> Result:
    try:
        if tracker is not None:
            tracker.on_start(experiment)
            write_run_id(folder, tracker.store.uri, tracker.run_id)
        for observer in observers:
            observer.on_start(experiment)
        for row in experiment.rounds(folder):
            if tracker is not None:
                tracker.on_round(experiment, row)
            for observer in observers:
                observer.on_round(experiment, row)
        result = finish(experiment, folder)
    except BaseException as failure:
        _end_broken(experiment, folder, tracker, observers, failure)
        raise
    if tracker is not None:
        result = dataclasses.replace(result, run_id=tracker.run_id)
        tracker.on_end(experiment, result)
        tracker.attach(picture(experiment, out))
    store(folder, experiment.config, result)
    for observer in observers:
        observer.on_end(experiment, result)
    return result


def _end_broken(
    experiment: Experiment,
    folder: Path,
    tracker: "MLflowObserver | None",
    observers: Sequence[Observer],
    failure: BaseException,
) -> None:
    """Record how a run broke off. What goes wrong meanwhile must not hide the failure itself."""
    run_id = tracker.run_id if tracker is not None else None
    status = "FAILED" if isinstance(failure, Exception) else "KILLED"
    result = dataclasses.replace(stopped(experiment, status), run_id=run_id)
    error = describe(failure)
    steps: list[Callable[[], None]] = [lambda: store(folder, experiment.config, result, error)]
    if tracker is not None and run_id is not None:
        steps.append(lambda: tracker.on_end(experiment, result, error))
    steps += [functools.partial(observer.on_end, experiment, result) for observer in observers]
    for step in steps:
        try:
            step()
        except Exception as second:
            _LOG.debug("while recording a failure: %s", second)


def describe(failure: BaseException) -> str:
    """A failure with its traceback, as text."""
    return "".join(traceback.format_exception(failure)).strip()


@contextmanager
def disk_trouble(folder: Path) -> Iterator[None]:
    """A disk that takes no more ends a run in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        trouble = os.strerror(error.errno).lower()
        raise RunFailed(
            f"can't write to '{folder}', {trouble}: {_REMEDIES[error.errno]} and go on with --resume"
        ) from None


_REMEDIES = {
    errno.ENOSPC: "free some",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "make it writable",
}


def write_run_id(folder: Path, uri: str, run_id: str | None) -> None:
    """Remember the MLflow run of a cell."""
    checkpoint.write_whole(folder / "run.json", json.dumps({"uri": uri, "run_id": run_id}).encode())


def read_run_id(folder: Path, uri: str) -> str | None:
    """The MLflow run of a cell, if it is kept in this store."""
    try:
        plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return str(plain["run_id"]) if plain["uri"] == uri and plain["run_id"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
