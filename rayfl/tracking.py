"""MLflow: where runs are kept, and the one writer that keeps them. The only import of mlflow.

Names, tags and steps are those of the README; a round is logged once, whatever is repeated after a crash.
MLflow knows no diverged runs: they get its status FAILED and the tag ``status`` DIVERGED.
"""

import functools
import json
import logging
import math
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from rayfl.config import ExperimentConfig, TrackingConfig, flatten
from rayfl.errors import UserError
from rayfl.experiment import Experiment, Observer, Result

LONGEST_PARAM = 6000
"""MLflow's own limit; the artifact config.json holds values uncut."""
ARTIFACTS = ("config.json", "ledger.parquet", "confusion.csv")
_CONNECT_S = 4
_SHARE = 0.03
"""The share of wall time that writing may take; faster rounds go to the store several at a time."""
_PER_BATCH = 90
_LOG = logging.getLogger("rayfl.tracking")


def store_uri(config: TrackingConfig, out: Path) -> str:
    """The store's absolute URI: the config's, else MLFLOW_TRACKING_URI, else SQLite in ``out``."""
    asked = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not asked:
        return f"sqlite:///{out.resolve() / 'mlflow.db'}"
    scheme = urlsplit(asked).scheme
    if scheme in ("", "file"):
        raise UserError(
            f"MLflow no longer keeps runs in a folder, got '{asked}': use a database, "
            f"e.g. tracking.uri=sqlite:///mlflow.db"
        )
    if scheme != "sqlite":
        return asked
    path = unquote(asked.removeprefix("sqlite:///"))
    if not asked.startswith("sqlite:///") or not path or path == ":memory:":
        raise UserError(f"a store that lasts looks like sqlite:///path/to/mlflow.db, got '{asked}'")
    return f"sqlite:///{Path(path).resolve()}"


@functools.cache
def _mlflow() -> Any:
    """The module, quiet, and impatient with servers that don't answer."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_CONNECT_S),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


def prepare(uri: str, experiment: str, artifacts: Path | None = None) -> "Store":
    """Create the store and the MLflow experiment where they are missing; one process at a time.

    Raises UserError within seconds where the store can't be had.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        _probe(uri)
    try:
        mlflow = _mlflow()
        if not uri.startswith("sqlite:///"):
            return _open(mlflow, uri, experiment, None)
        path = Path(uri.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            return _open(mlflow, uri, experiment, artifacts)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"can't open the MLflow store '{uri}': {reason[0]}; set tracking.uri, or tracking.enabled=false"
        ) from error


def _probe(uri: str) -> None:
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"no MLflow server answers at '{uri}' ({error}): start it, set tracking.uri, or "
            f"tracking.enabled=false"
        ) from error


def _open(mlflow: Any, uri: str, experiment: str, artifacts: Path | None) -> "Store":
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return Store(client, found.experiment_id, uri)
    location = None if artifacts is None else artifacts.resolve().as_uri()
    return Store(client, client.create_experiment(experiment, artifact_location=location), uri)


@dataclass(frozen=True)
class Store:
    """An open tracking store and the MLflow experiment in it."""

    client: Any
    experiment_id: str
    uri: str

    def find(self, **tags: str) -> list[Any]:
        """The runs with these tags, oldest first."""
        where = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        runs: list[Any] = []
        token = None
        while token is not None or not runs:
            page = self.client.search_runs(
                [self.experiment_id], where, max_results=1000, order_by=["start_time ASC"], page_token=token
            )
            runs += page
            token = page.token
            if not token:
                break
        return runs

    def parent(self, name: str, key: str, tags: Mapping[str, str]) -> str:
        """The run that stands for a sweep: the one with this key, or a new one. One process at a time."""
        found = self.find(sweep_key=key)
        if not found:
            created = self.client.create_run(
                self.experiment_id, run_name=name, tags={**tags, "sweep_key": key}
            )
            run_id: str = created.info.run_id
            return run_id
        run_id = found[0].info.run_id
        self.client.update_run(run_id, status="RUNNING")
        for tag, value in tags.items():
            self.client.set_tag(run_id, tag, value)
        return run_id

    def children(self, parent: str) -> dict[str, str]:
        """Cell hash -> run of a sweep's cells."""
        runs = reversed(self.find(**{"mlflow.parentRunId": parent}))
        return {run.data.tags.get("cell_hash", ""): run.info.run_id for run in runs}

    def adopt(self, run_id: str, parent: str) -> None:
        """Show a run that has no parent below this one; a run that is not in this store is passed over."""
        try:
            if "mlflow.parentRunId" not in self.client.get_run(run_id).data.tags:
                self.client.set_tag(run_id, "mlflow.parentRunId", parent)
        except Exception as error:
            _LOG.debug("run %s stays where it is: %s", run_id, error)

    def attach(self, run_id: str, path: Path) -> None:
        """Copy a file to a run's artifacts."""
        _guarded(lambda: self._copy(self.client.get_run(run_id).info.artifact_uri, run_id, [path]))

    def end(self, run_id: str, status: str) -> None:
        """Close a run that is not a cell's."""
        _guarded(lambda: self.client.set_terminated(run_id, _mlflow_status(status)))

    def _copy(self, artifact_uri: str, run_id: str, files: Sequence[Path]) -> None:
        if urlsplit(artifact_uri).scheme in ("", "file"):
            # What MLflow's client does for local stores, without looking the run up for each file.
            target = Path(unquote(urlsplit(artifact_uri).path))
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copyfile(file, target / file.name)
        else:
            for file in files:
                self.client.log_artifact(run_id, str(file))


class RunLog:
    """Writes one cell to its MLflow run. Trouble with the store is said once and stops no training."""

    def __init__(
        self,
        store: Store,
        config: ExperimentConfig,
        run_id: str | None = None,
        parent: str | None = None,
        label: str | None = None,
    ) -> None:
        self._store, self._config = store, config
        self._pending: list[tuple[int, dict[str, float]]] = []
        self._logged = -1
        self._final: dict[str, float] = {}
        self._tags: dict[str, str] = {}
        self._params: dict[str, str] = {}
        self._next = 0.0
        self._known: set[str] = set()
        self.run_id: str
        if run_id is not None and self._reopen(run_id):
            return
        tags = {**run_tags(config), "status": "RUNNING"}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        name = label or f"{config.algorithm.name}.{config.data.name} seed {config.seed}"
        created = store.client.create_run(store.experiment_id, run_name=name, tags=tags)
        self.run_id, self._artifact_uri = created.info.run_id, created.info.artifact_uri
        self._params = run_params(config)

    def _reopen(self, run_id: str) -> bool:
        client = self._store.client
        try:
            run = client.get_run(run_id)
        except _mlflow().MlflowException:
            return False
        if run.info.lifecycle_stage == "deleted":
            return False
        self.run_id, self._artifact_uri = run_id, run.info.artifact_uri
        self._final = {key: value for key, value in run.data.metrics.items() if key.startswith("final/")}
        history = client.get_metric_history(run_id, "comm/total_bytes")
        self._logged = max((point.step for point in history), default=-1)
        if not run.data.params:
            self._params = run_params(self._config)
        client.update_run(run_id, status="RUNNING")
        self._tags["status"] = "RUNNING"
        return True

    def rows(self, rows: Sequence[Mapping[str, float]], partition_hash: str | None = None) -> None:
        """Take rounds in; they are written at once, or with the next ones where rounds are quick."""
        if partition_hash is not None and "partition_hash" not in self._known:
            self._known.add("partition_hash")
            self._tags["partition_hash"] = partition_hash
        now = int(time.time() * 1000)
        last = self._pending[-1][1]["round"] if self._pending else self._logged
        for row in rows:
            if row["round"] > last:
                self._pending.append((now, dict(row)))
                last = row["round"]
        if time.perf_counter() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Write what is pending; what can't be written stays pending."""
        started = time.perf_counter()
        _guarded(lambda: self._write({}))
        self._next = time.perf_counter() + (time.perf_counter() - started) / _SHARE

    def end(self, result: Result, folder: Path, error: str | None = None) -> None:
        """The summary, the files and the status."""
        tags = {"status": result.status}
        if result.weights_sha256:
            tags["weights_sha256"] = result.weights_sha256
        if result.partition_hash:
            tags["partition_hash"] = result.partition_hash
        if error:
            tags["error"] = error[:LONGEST_PARAM]
        self._tags.update(tags)
        self.rows_left(result.history)
        final = {key: value for key, value in result.metrics.items() if key.startswith("final/")}

        def close() -> None:
            self._write({k: v for k, v in final.items() if self._final.get(k) != v}, result.rounds)
            files = [folder / name for name in ARTIFACTS]
            self._store._copy(self._artifact_uri, self.run_id, [file for file in files if file.exists()])
            self._store.client.set_terminated(self.run_id, _mlflow_status(result.status))

        if not _guarded(close):
            _LOG.warning("MLflow run %s is incomplete; all numbers are in %s", self.run_id, folder)

    def rows_left(self, history: Sequence[Mapping[str, float]]) -> None:
        """Take in the rounds that are not written yet, without writing."""
        self._next = math.inf
        self.rows(history)

    def _write(self, final: Mapping[str, float], step: int = 0) -> None:
        from mlflow.entities import Metric, Param, RunTag

        points = []
        for now, row in self._pending:
            for key, value in row.items():
                if key == "round":
                    continue
                if not math.isfinite(value):
                    # A database has no infinity and hides NaN: said in words instead of a wrong number.
                    self._tags.setdefault(
                        f"nonfinite.{metric_name(key)}", f"{value} in round {row['round']:g}"
                    )
                else:
                    points.append(Metric(metric_name(key), float(value), now, int(row["round"])))
        now = int(time.time() * 1000)
        points += [Metric(metric_name(k), float(v), now, step) for k, v in final.items() if math.isfinite(v)]
        params = [Param(key, value) for key, value in self._params.items()]
        tags = [RunTag(key, value) for key, value in self._tags.items()]
        if not (points or params or tags):
            return
        client = self._store.client
        first, rest = points[: 1000 - 2 * _PER_BATCH], points[1000 - 2 * _PER_BATCH :]
        client.log_batch(
            self.run_id, metrics=first, params=params[:_PER_BATCH], tags=tags[:_PER_BATCH], synchronous=True
        )
        for at in range(_PER_BATCH, max(len(params), len(tags)), _PER_BATCH):
            client.log_batch(
                self.run_id, params=params[at : at + _PER_BATCH], tags=tags[at : at + _PER_BATCH]
            )
        for at in range(0, len(rest), 1000):
            client.log_batch(self.run_id, metrics=rest[at : at + 1000])
        if self._pending:
            self._logged = int(self._pending[-1][1]["round"])
        self._pending, self._params, self._tags = [], {}, {}


class MLflowObserver(Observer):
    """Writes one experiment to MLflow as it goes."""

    def __init__(self, store: Store, run_id: str | None = None, files: Path | None = None) -> None:
        self.store, self.run_id = store, run_id
        self._files = files or Path()
        self._log: RunLog | None = None

    def on_start(self, experiment: Experiment) -> None:
        self._log = RunLog(self.store, experiment.config, self.run_id)
        self.run_id = self._log.run_id
        self._log.rows(experiment.history, experiment.data.partition.hash)

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        assert self._log is not None
        self._log.rows([row])

    def on_end(self, experiment: Experiment, result: Result, error: str | None = None) -> None:
        assert self._log is not None
        self._log.end(result, self._files, error)

    def attach(self, path: Path) -> None:
        """Copy a file to the run's artifacts."""
        assert self.run_id is not None
        self.store.attach(self.run_id, path)


def run_tags(config: ExperimentConfig) -> dict[str, str]:
    """What a run is found by."""
    law = config.data.partition
    tags = {
        "method": config.algorithm.name,
        "dataset": config.data.name,
        "partition": f"{law.kind}.{law.scheme}" if law.kind == "dirichlet" else law.kind,
        "seed": str(config.seed),
        "cell_hash": config.cell_hash,
        "rayfl_version": version(),
    }
    if law.kind in ("dirichlet", "quantity"):
        tags["alpha"] = f"{law.alpha:g}"
    sha = git_sha(os.getcwd())
    if sha:
        tags["git_sha"] = sha
    return tags


def run_params(config: ExperimentConfig) -> dict[str, str]:
    """The resolved config by dotted path; long values are cut, visibly."""
    params = {}
    for key, value in flatten(config.to_dict()).items():
        text = value if isinstance(value, str) else json.dumps(value)
        params[key] = text if len(text) <= LONGEST_PARAM else text[: LONGEST_PARAM - 1] + "…"
    return params


def metric_name(name: str) -> str:
    """The nearest name that MLflow accepts."""
    clean = re.sub(r"[^\w\-. :/]", "_", name)
    parts = [part for part in clean.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:250] or "_"


def version() -> str:
    """rayfl's own."""
    return metadata.version("rayfl")


@functools.cache
def git_sha(folder: str) -> str | None:
    """The commit that a folder's repository is at, if it is in one."""
    try:
        found = subprocess.run(
            ["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _mlflow_status(status: str) -> str:
    return {"FINISHED": "FINISHED", "KILLED": "KILLED"}.get(status, "FAILED")


_silenced = False


def _guarded(write: Any) -> bool:
    """Write to the store; a failure is a warning, once, since training must not hang on a logbook."""
    global _silenced
    try:
        write()
    except Exception as error:
        if not _silenced:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _LOG.warning("MLflow takes no more metrics for now (%s); the run goes on", reason)
        _silenced = True
        return False
    _silenced = False
    return True
