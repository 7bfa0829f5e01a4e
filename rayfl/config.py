"""What an experiment is: one method on one partitioned dataset with one seed."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from rayfl.algorithms.fedavg import FedAvg
from rayfl.data import DataConfig
from rayfl.fleet_config import FleetConfig
from rayfl.models import ModelConfig
from rayfl.training import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Where and in which precision parties compute."""

    device: str = "cpu"
    """cpu, cuda or cuda:<n>."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """bfloat16 keeps float32 weights and computes under autocast."""
    threads: Annotated[int, Ge(1)] = 1
    """CPU threads per process; part of what the bits depend on."""
    deterministic: bool = True
    """On GPU: deterministic algorithms only."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where MLflow keeps the runs."""

    enabled: bool = True
    """Whether runs are logged to MLflow."""
    uri: str | None = None
    """Tracking store; default: MLFLOW_TRACKING_URI, else sqlite in the output folder."""
    experiment: str = "rayfl"
    """MLflow experiment."""


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """All of one experiment. Equal configs give equal results."""

    rounds: Annotated[int, Ge(0)] = 10
    """Communication rounds T."""
    seed: int = 0
    """Root of all randomness."""
    eval_every: Annotated[int, Ge(1)] = 1
    """Rounds between evaluations; round 0 and the last one are always evaluated."""
    checkpoint_every: Annotated[int, Ge(1)] = 5
    """Rounds between checkpoints."""
    targets: tuple[Annotated[float, Gt(0), Le(1)], ...] = ()
    """Test accuracies (Dice for segmentation) whose first round, bytes and time are reported."""
    benign: tuple[str, ...] = ()
    """Classes counted as benign although the dataset calls them dangerous to overlook, e.g. [AK]."""
    algorithm: TrainingConfig = field(default_factory=FedAvg.Config)
    """The method and its knobs; which keys exist depends on ``algorithm.name``."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for YAML and JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @property
    def cell_hash(self) -> str:
        """The name of this experiment's results: a hash of all that may change them.

        So not of tracking, nor of where data were prepared from and how far ahead they are read; files that
        their content is known of may lie anywhere.
        """
        content = {key: value for key, value in self.to_dict().items() if key != "tracking"}
        data, model = content["data"], content["model"]
        del data["source"], data["prefetch"]
        if data["partition"]["file_hash"] is not None:
            del data["partition"]["path"]
        if model["weights_hash"] is not None:
            del model["weights"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A grid of experiments. A cell is preset < set < grid < when < overrides; keys are dotted paths."""

    name: str
    """What the sweep is called."""
    preset: str | None = None
    """The preset or file that every cell starts from; default: rayfl's defaults."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all cells."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of each axis; the last axis varies fastest."""
    when: tuple["When", ...] = ()
    """Settings that depend on the cell."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """The user's own settings of all cells, which win over everything else."""
    max_concurrent: int | None = None
    """Most cells at once; default: as many as fit."""

    def cells(self) -> list[ExperimentConfig]:
        """The experiments in grid order; of several that come out equal, the first."""
        from rayfl.loading.sweeps import sweep_cells

        return sweep_cells(self)


@dataclass(frozen=True, kw_only=True)
class When:
    """Settings for the cells that meet a condition."""

    condition: Mapping[str, Any]
    """Dotted paths and the value, or a list of the values, that each must have."""
    set: Mapping[str, Any]
    """What such cells get."""


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
