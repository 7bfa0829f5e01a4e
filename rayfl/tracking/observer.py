"""An observer that writes one experiment to MLflow."""

from pathlib import Path

from rayfl.experiment import Experiment, Observer, Result
from rayfl.tracking.run_log import RunLog
from rayfl.tracking.store import Store


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
