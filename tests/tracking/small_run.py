"""A run small enough for every test here, and what a store holds of it."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayfl.algorithms.fedavg import FedAvg
from rayfl.config import ExperimentConfig, TrackingConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.experiment import Experiment, Observer, Result
from rayfl.models import ModelConfig

SMALL = SyntheticConfig(num_train=120, num_test=40, num_classes=3, height=4, width=4)


def config(rounds: int = 6, root: str | None = None, seed: int = 0, **tracked: Any) -> ExperimentConfig:
    """Three clients, checkpoints every two rounds."""
    return ExperimentConfig(
        rounds=rounds,
        seed=seed,
        checkpoint_every=2,
        algorithm=FedAvg.Config(lr=0.05, batch_size=8),
        data=DataConfig(
            name="synthetic",
            num_clients=3,
            partition=PartitionConfig(kind="dirichlet", min_size=1),
            synthetic=SMALL,
            root=root,
        ),
        model=ModelConfig(name="mlp", width=0.1),
        tracking=TrackingConfig(**tracked),
    )


def sql(database: Path, query: str) -> list[Any]:
    """Ask the store behind MLflow's back."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def whole(client: Any, result: Result) -> bool:
    """Whether a finished run has every number of its history, and each once."""
    run = client.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    wanted: dict[str, dict[int, float]] = {
        key: {result.rounds: value} for key, value in result.metrics.items() if key.startswith("final/")
    }
    for row in result.history:
        for key in row.keys() - {"round"}:
            wanted.setdefault(key, {})[int(row["round"])] = row[key]
    assert set(run.data.metrics) == set(wanted)
    for key, points in wanted.items():
        found = client.get_metric_history(result.run_id, key)
        assert sorted(point.step for point in found) == sorted(points), key
        # A round that is repeated after a kill takes another time.
        if not key.startswith("wall/"):
            assert {point.step: point.value for point in found} == points, key
    return True


class At(Observer):
    """Does something after some rounds."""

    def __init__(self, **deeds: Callable[[], Any]) -> None:
        """``round_3=...`` is done after round 3."""
        self.deeds = deeds

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        self.deeds.get(f"round_{row['round']:g}", lambda: None)()


def stop() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt
