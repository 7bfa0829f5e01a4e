"""One cell's rounds, params, tags and files on their way to MLflow."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rayfl.config import ExperimentConfig
from rayfl.experiment import Result
from rayfl.tracking.names import LONGEST_PARAM, metric_name, mlflow_status, run_params, run_tags, tag_name
from rayfl.tracking.refusals import demanded
from rayfl.tracking.store import Store

ARTIFACTS = ("config.json", "ledger.parquet", "confusion.csv", "clients.csv")
_MARK = "comm/total_bytes"
"""The metric of every round, by which the rounds in the store are known."""
_METRICS, _OTHERS = 800, 100
"""Most metrics, and most params and most tags, of one request: MLflow takes 1,000 together."""
_Entry = tuple[int, int, Mapping[str, float]]
"""Milliseconds since 1970, step, metrics."""
_LOG = logging.getLogger("rayfl.tracking")


class RunLog:
    """Writes one cell to its MLflow run. Trouble with the store is said once and stops no training.

    A run on its own must have its place in the store before it starts, else UserError is raised; a cell of a
    sweep, which has a ``parent``, gets it when the store is back. Until then its ``run_id`` is empty.
    """

    def __init__(
        self,
        store: Store,
        config: ExperimentConfig,
        run_id: str | None = None,
        parent: str | None = None,
        label: str | None = None,
    ) -> None:
        self._store, self._config, self._parent = store, config, parent
        self._label = label or f"{config.algorithm.name}.{config.data.name} seed {config.seed}"
        self._arrived: list[_Entry] = []
        """What came in since the last write began: all that may change during one."""
        self._pending: list[_Entry] = []
        self._logged = -1
        self._final: dict[str, float] = {}
        self._tags: dict[str, str] = {}
        self._params: dict[str, str] = {}
        self._partition_hash = self._tagged_hash = ""
        self._asked = run_id or None
        self.run_id = ""
        if parent is not None:
            store.outbox.send(self._open)
            return
        with demanded(store.outbox.uri, config.tracking.experiment):
            self._open()

    def _open(self) -> None:
        """Find the run that was asked for, or make one."""
        if self._asked is None or not self._reopen(self._asked):
            tags = {**run_tags(self._config), "status": "RUNNING"}
            if self._parent is not None:
                tags["mlflow.parentRunId"] = self._parent
            created = self._store.client.create_run(
                self._store.experiment_id, run_name=self._label, tags=tags
            )
            self._artifact_uri = created.info.artifact_uri
            self._params = run_params(self._config)
            self.run_id = created.info.run_id

    def _reopen(self, run_id: str) -> bool:
        from mlflow import MlflowException

        client = self._store.client
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        if run.info.lifecycle_stage == "deleted":
            return False
        self._artifact_uri = run.info.artifact_uri
        self._final = {key: value for key, value in run.data.metrics.items() if key.startswith("final/")}
        self._logged = max((point.step for point in client.get_metric_history(run_id, _MARK)), default=-1)
        self._pending = [entry for entry in self._pending if entry[1] > self._logged]
        if not run.data.params:
            self._params = run_params(self._config)
        client.update_run(run_id, status="RUNNING")
        self._tags.setdefault("status", "RUNNING")
        self.run_id = run_id
        return True

    def rows(self, rows: Sequence[Mapping[str, float]], partition_hash: str | None = None) -> None:
        """Take rounds in; they are written in the background, with the next ones where rounds are quick."""
        self._arrived += _entries(rows)
        self._partition_hash = partition_hash or self._partition_hash
        if self._store.outbox.due:
            self.flush()

    def flush(self) -> None:
        """Write in the background what came in; what can't be written stays pending."""
        self._take()
        self._store.outbox.post(self._write)

    def end(self, result: Result, folder: Path, error: str | None = None) -> None:
        """The summary, the files and the status."""
        said = {"status": result.status, "weights_sha256": result.weights_sha256}
        said |= {"partition_hash": result.partition_hash, "error": (error or "")[:LONGEST_PARAM]}
        tags = {tag: value for tag, value in said.items() if value}
        final = {key: value for key, value in result.metrics.items() if key.startswith("final/")}
        summary = (_now(), result.rounds, final)
        self._arrived += _entries(result.history)
        self._store.outbox.wait()
        self._take()

        def close() -> None:
            self._write()
            self._tags.update(tags)
            self._request([summary])
            files = [*(folder / name for name in ARTIFACTS), *sorted(folder.glob("*.png"))]
            self._store.copy(self._artifact_uri, self.run_id, [file for file in files if file.exists()])
            self._store.client.set_terminated(self.run_id, mlflow_status(result.status))

        if self._store.outbox.send(close, insist=self._parent is None):
            return
        if self._parent is None:
            _LOG.warning("MLflow run %s is incomplete; all numbers are in %s", self.run_id, folder)
        else:
            self._store.outbox.owe(close)

    def _take(self) -> None:
        """What came in and is neither written nor pending becomes pending."""
        if self._partition_hash != self._tagged_hash:
            self._tags["partition_hash"] = self._tagged_hash = self._partition_hash
        last = self._pending[-1][1] if self._pending else self._logged
        for entry in self._arrived:
            if entry[1] > last:
                last = entry[1]
                self._pending.append(entry)
        self._arrived = []

    def _write(self) -> None:
        """All pending rounds, the first with the pending params and tags."""
        if not self.run_id:
            self._open()
        while rounds := self._fitting():
            self._request(rounds)
            self._logged = rounds[-1][1]
            del self._pending[: len(rounds)]
        self._request([])

    def _fitting(self) -> list[_Entry]:
        """As many rounds as one request holds, at least one: a request arrives whole or not at all."""
        size = 0
        rounds: list[_Entry] = []
        for entry in self._pending:
            size += len(entry[2])
            if rounds and size > _METRICS:
                break
            rounds.append(entry)
        return rounds

    def _request(self, entries: Sequence[_Entry]) -> None:
        from mlflow.entities import Param, RunTag

        points = [point for entry in entries for point in self._points(*entry)]
        params = [Param(key, value) for key, value in self._params.items()]
        tags = [RunTag(key, value) for key, value in self._tags.items()]
        parts = (_cut(points, _METRICS), _cut(params, _OTHERS), _cut(tags, _OTHERS))
        for request in zip_longest(*parts, fillvalue=()):
            self._store.client.log_batch(self.run_id, *request, synchronous=True)
        self._params, self._tags = {}, {}

    def _points(self, time_ms: int, step: int, row: Mapping[str, float]) -> list[Any]:
        from mlflow.entities import Metric

        points = []
        for key, value in sorted(row.items(), key=lambda item: item[0] == _MARK):
            name = metric_name(key)
            if key == "round" or self._final.get(key) == value:
                continue
            if math.isfinite(value):
                points.append(Metric(name, float(value), time_ms, step))
            else:
                # A database has no infinity and hides NaN: said in words instead of a wrong number.
                self._tags.setdefault(tag_name(f"nonfinite.{name}"), f"{value} in round {step}")
        return points


def _cut(entries: list[Any], size: int) -> list[list[Any]]:
    return [entries[at : at + size] for at in range(0, len(entries), size)]


def _entries(rows: Sequence[Mapping[str, float]]) -> list[_Entry]:
    return [(_now(), int(row["round"]), dict(row)) for row in rows]


def _now() -> int:
    return int(time.time() * 1000)
