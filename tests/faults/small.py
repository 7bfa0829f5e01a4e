"""Experiments of a second: four clients on generated images, a state that outlives rounds."""

from typing import Any

from rayfl.algorithms import ALGORITHMS, Algorithm
from rayfl.config import ExperimentConfig, TrackingConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.fleet_config import FleetConfig
from rayfl.models import ModelConfig

APART = FleetConfig(client_actors=2, placement="separate")
IMAGES = SyntheticConfig(num_train=96, num_test=24, num_classes=3, height=4, width=4)


def config(
    method: str | type[Algorithm], fleet: FleetConfig | None = None, name: str = "", **more: Any
) -> ExperimentConfig:
    """Four rounds, a checkpoint every second one. A class of one's own comes with the name to find it by."""
    cast = ALGORITHMS[method] if isinstance(method, str) else method
    options: dict[str, Any] = {"intervals": (2, 3)} if issubclass(cast, ALGORITHMS["hsfl"]) else {}
    if name:
        options["name"] = name
    return ExperimentConfig(
        **{"rounds": 4, "checkpoint_every": 2, **more},
        algorithm=cast.Config(batch_size=8, momentum=0.9, reset_optimizer="keep", **options),
        data=DataConfig(
            name="synthetic",
            num_clients=4,
            num_edges=2,
            partition=PartitionConfig(kind="iid"),
            synthetic=IMAGES,
        ),
        model=ModelConfig(name="mlp", width=0.1),
        fleet=fleet or FleetConfig(),
        tracking=TrackingConfig(enabled=False),
    )


def numbers(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Rows without what a clock measured."""
    return [{key: value for key, value in row.items() if not key.startswith("wall/")} for row in history]
