"""The tracking store: opening it, and the runs in it."""

import functools
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from rayfl.tracking.address import is_server, reach, shown, sqlite_path
from rayfl.tracking.client import library
from rayfl.tracking.names import mlflow_status, version
from rayfl.tracking.outbox import Outbox
from rayfl.tracking.refusals import demanded, reason

_LOG = logging.getLogger("rayfl.tracking")
_TURN_S = 300
"""Seconds that other processes may take to make the store's tables."""


def prepare(uri: str, experiment: str, artifacts: Path | None = None) -> "Store":
    """Create the store and the MLflow experiment where they are missing; one process at a time.

    Files go to ``artifacts``, or where a server keeps them. Raises UserError within seconds where the store
    can't be had or not be written to.
    """
    with demanded(uri, experiment) as mlflow:
        if is_server(uri):
            reach(uri)
            return _open(mlflow, uri, experiment, None)
        with FileLock(_lock_file(uri), timeout=_TURN_S):
            log_in(uri)
            return _open(mlflow, uri, experiment, artifacts)


def _lock_file(uri: str) -> Path:
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f"{path.name}.lock")
    place = hashlib.sha256(shown(uri).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rayfl-{os.getuid()}-{place}.lock"


def log_in(uri: str) -> None:
    """Refuse within seconds a database that can't be had: MLflow itself tries for more than a minute."""
    with demanded(uri):
        reach(uri)
        if sqlite_path(uri) is None:
            import sqlalchemy

            engine = sqlalchemy.create_engine(uri)
            engine.connect().close()
            engine.dispose()


def _open(mlflow: Any, uri: str, experiment: str, artifacts: Path | None) -> "Store":
    client = mlflow.MlflowClient(tracking_uri=uri)
    store = functools.partial(Store, client, outbox=Outbox(uri))
    tag = {"rayfl_version": version()}
    found = client.get_experiment_by_name(experiment)
    if found is None:
        location = None if artifacts is None else artifacts.resolve().as_uri()
        try:
            return store(client.create_experiment(experiment, location, tag))
        except mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another process was quicker.
            found = client.get_experiment_by_name(experiment)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    # A write, so that who may only read hears of it now.
    client.set_experiment_tag(found.experiment_id, *tag.popitem())
    return store(found.experiment_id)


@dataclass(frozen=True)
class Store:
    """An open tracking store and the MLflow experiment in it."""

    client: Any
    experiment_id: str
    outbox: Outbox = field(repr=False)
    """The way for all writes that training must not wait for."""

    @property
    def uri(self) -> str:
        """Without its secrets: what is written down, and tells stores apart."""
        return shown(self.outbox.uri)

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
        with demanded(self.outbox.uri):
            found = self.find(sweep_key=key)
            if not found:
                tags = {**tags, "sweep_key": key}
                created = self.client.create_run(self.experiment_id, run_name=name, tags=tags)
                return str(created.info.run_id)
            run_id: str = found[0].info.run_id
            self.client.update_run(run_id, status="RUNNING")
            for tag, value in tags.items():
                self.client.set_tag(run_id, tag, value)
            return run_id

    def children(self, parent: str) -> dict[str, str]:
        """Cell hash -> run of a sweep's cells."""
        with demanded(self.outbox.uri):
            runs = reversed(self.find(**{"mlflow.parentRunId": parent}))
            return {run.data.tags.get("cell_hash", ""): run.info.run_id for run in runs}

    def adopt(self, run_id: str, parent: str) -> None:
        """Show a run that has no parent below this one; a run that is not in this store is passed over."""
        try:
            with library():
                if "mlflow.parentRunId" not in self.client.get_run(run_id).data.tags:
                    self.client.set_tag(run_id, "mlflow.parentRunId", parent)
        except Exception as error:
            _LOG.debug("run %s stays where it is: %s", run_id, reason(error, self.outbox.uri))

    def attach(self, run_id: str, path: Path) -> None:
        """Copy a file to a run's artifacts."""
        self.outbox.send(lambda: self.copy(self.client.get_run(run_id).info.artifact_uri, run_id, [path]))

    def end(self, run_id: str, status: str) -> None:
        """Close a run that is not a cell's, after all that its cells still owe."""
        incomplete = self.outbox.settle()
        if incomplete:
            _LOG.warning("%d MLflow runs are incomplete; all numbers are in the cells' folders", incomplete)
        self.outbox.send(lambda: self.client.set_terminated(run_id, mlflow_status(status)))

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
