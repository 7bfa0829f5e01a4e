"""Federated, split and hierarchical learning experiments on Ray: right, fast, reproducible to the bit."""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.algorithms import Algorithm
    from rayfl.config import ExperimentConfig, SweepConfig
    from rayfl.experiment import Observer, Result
    from rayfl.search.config import SearchConfig

__all__ = ["Algorithm", "ExperimentConfig", "Observer", "Result", "run", "sweep", "tune"]

# Without it the last bits of a product follow from where MKL finds its operands in memory, which differs
# between one process and several. It is read at the first product, here and in every worker.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Loaded when first used: importing torch takes a second that `rayfl --help` need not spend.
_HOMES = {
    "Algorithm": "rayfl.algorithms",
    "ExperimentConfig": "rayfl.config",
    "Observer": "rayfl.experiment",
    "Result": "rayfl.experiment",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("rayfl")
    if name not in _HOMES:
        raise AttributeError(f"module 'rayfl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def run(
    config: "str | Path | Mapping[str, Any] | ExperimentConfig",
    *,
    overrides: "Sequence[str] | Mapping[str, Any]" = (),
    with_files: Sequence[str | Path] = (),
    out: str | Path = "rayfl-results",
    resume: bool = False,
    observers: "Sequence[Observer]" = (),
) -> "Result":
    """Run one experiment: a preset's name, a YAML file, nested keys or a config.

    ``overrides`` are settings, ``["algorithm.lr=0.1"]`` or ``{"algorithm.lr": 0.1}``; ``observers`` are told
    of every round. With ``resume`` an experiment that has ended in ``out`` is not run again and a half-done
    one goes on.
    """
    from rayfl import runs
    from rayfl.loading.experiments import load_experiment

    return runs.execute(load_experiment(config, overrides, with_files), out, resume, observers)


def sweep(
    config: "str | Path | Mapping[str, Any] | SweepConfig",
    *,
    overrides: "Sequence[str] | Mapping[str, Any]" = (),
    with_files: Sequence[str | Path] = (),
    out: str | Path = "rayfl-results",
    retry_failed: bool = False,
    max_concurrent: int | None = None,
) -> "pd.DataFrame":
    """Run a grid of experiments, as many at once as fit, and return a table of one row per cell.

    Cells that have ended in ``out`` are not run again, half-done ones go on, failed ones run again with
    ``retry_failed``. See :mod:`rayfl.report.table` for means over seeds.
    """
    from rayfl import sweeps
    from rayfl.loading.sweeps import load_sweep

    plan = load_sweep(config, overrides, with_files)
    return sweeps.run_sweep(plan, out, retry_failed, max_concurrent)


def tune(
    config: "str | Path | Mapping[str, Any] | SearchConfig",
    *,
    overrides: "Sequence[str] | Mapping[str, Any]" = (),
    with_files: Sequence[str | Path] = (),
    out: str | Path = "rayfl-results",
    retry_failed: bool = False,
    max_concurrent: int | None = None,
) -> "pd.DataFrame":
    """Search hyper-parameters and return a table of one row per trial; ``attrs["best"]`` tells of the best
    one, or of the Pareto front, with its preset.

    Trials that have ended in ``out`` are not run again, half-done ones go on, failed ones run again with
    ``retry_failed``.
    """
    from rayfl.loading.searches import load_search
    from rayfl.search.run import run_search

    search = load_search(config, overrides, with_files)
    return run_search(search, out, retry_failed, max_concurrent).trials
