"""The tracking store: its address, opening it, and the runs in it."""

import logging
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from rayfl.config import TrackingConfig
from rayfl.errors import UserError
from rayfl.tracking.client import CONNECT_S, guarded, mlflow_module
from rayfl.tracking.names import mlflow_status

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


def prepare(uri: str, experiment: str, artifacts: Path | None = None) -> "Store":
    """Create the store and the MLflow experiment where they are missing; one process at a time.

    Raises UserError within seconds where the store can't be had.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        _probe(uri)
    try:
        mlflow = mlflow_module()
        if not uri.startswith("sqlite:///"):
            return _open(mlflow, uri, experiment, None)
        path = Path(uri.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            return _open(mlflow, uri, experiment, artifacts)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"can't open the MLflow store '{uri}': {reason[0][:200]}; set tracking.uri, or "
            f"tracking.enabled=false"
        ) from error


def _probe(uri: str) -> None:
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S).close()
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
        guarded(lambda: self.copy(self.client.get_run(run_id).info.artifact_uri, run_id, [path]))

    def end(self, run_id: str, status: str) -> None:
        """Close a run that is not a cell's."""
        guarded(lambda: self.client.set_terminated(run_id, mlflow_status(status)))

    def copy(self, artifact_uri: str, run_id: str, files: Sequence[Path]) -> None:
        """Copy files to a run's artifacts, whose place is known."""
        if urlsplit(artifact_uri).scheme in ("", "file"):
            # What MLflow's client does for local stores, without looking the run up for each file.
            target = Path(unquote(urlsplit(artifact_uri).path))
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copyfile(file, target / file.name)
        else:
            for file in files:
                self.client.log_artifact(run_id, str(file))
