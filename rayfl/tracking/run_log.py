"""One cell's rounds, params, tags and files on their way to MLflow."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayfl.config import ExperimentConfig
from rayfl.experiment import Result
from rayfl.tracking.client import guarded, mlflow_module
from rayfl.tracking.names import LONGEST_PARAM, metric_name, mlflow_status, run_params, run_tags
from rayfl.tracking.store import Store

ARTIFACTS = ("config.json", "ledger.parquet", "confusion.csv", "clients.csv")
_SHARE = 0.03
"""The share of wall time that writing may take; faster rounds go to the store several at a time."""
_PER_BATCH = 90
_LOG = logging.getLogger("rayfl.tracking")


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
        except mlflow_module().MlflowException:
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
        guarded(lambda: self._write({}))
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
            self._store.copy(self._artifact_uri, self.run_id, [file for file in files if file.exists()])
            self._store.client.set_terminated(self.run_id, mlflow_status(result.status))

        if not guarded(close):
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
