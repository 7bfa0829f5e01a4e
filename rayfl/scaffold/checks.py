"""What must hold of MyMethod, whatever it is about: pytest runs it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayfl.config import ExperimentConfig
from rayfl.experiment import Experiment, make_fleet
from rayfl.fleet import Fleet, SealedFleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.layout import plan_layout
from rayfl.loading.experiments import load_experiment

PRESET = Path(__file__).with_name("my_method.yaml")
QUICK = {"rounds": 2, "algorithm.local_steps": 5}


def sealed(config: ExperimentConfig, blueprint: Blueprint) -> Fleet:
    """Several hosts in this process; what goes from one to another is a copy, and nobody may write to it."""
    layout = plan_layout(blueprint, FleetConfig(client_actors=2, placement="separate"))
    return SealedFleet(blueprint, layout)


def fingerprint(
    source: str | Path,
    settings: Mapping[str, Any] | None = None,
    fleet: Callable[[ExperimentConfig, Blueprint], Fleet] = make_fleet,
) -> str:
    """A hash of every bit of the weights after two short rounds."""
    experiment = Experiment(load_experiment(source, {**QUICK, **(settings or {})}), fleet)
    try:
        return experiment.run().weights_sha256
    finally:
        experiment.close()


def test_without_damping_it_is_its_parent() -> None:
    """At the knob's limit the method is one that is known to be right, to the last bit."""
    assert fingerprint(PRESET, {"algorithm.damping": 0.0}) == fingerprint("fedavg.digits")


def test_damping_changes_the_result() -> None:
    assert fingerprint(PRESET) != fingerprint("fedavg.digits")


def test_where_parties_live_changes_nothing() -> None:
    """A party that writes to a message, or knows more than it was sent, shows here."""
    assert fingerprint(PRESET, fleet=sealed) == fingerprint(PRESET)
