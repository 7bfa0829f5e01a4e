"""Wherever in a run parties are lost, it goes back to its last checkpoint and ends on the same bits."""

from pathlib import Path
from typing import Any

import pytest
import small

from rayfl import checkpoint
from rayfl.config import ExperimentConfig
from rayfl.errors import PartyLost
from rayfl.experiment import Experiment, Observer, Result
from rayfl.fleet import Fleet, Group, LocalFleet, Parcel
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint


class Losing(LocalFleet):
    """Loses a party at the operation of some number: a call, a settling, or the opening of a result."""

    def __init__(self, plan: Blueprint, at: int = 0, relaunches: int = 0) -> None:
        super().__init__(plan)
        self.at, self.done = at, 0
        self.bad_relaunches = relaunches

    def count(self) -> None:
        self.done += 1
        if self.done == self.at:
            raise PartyLost("an actor died")

    def _call(self, group: Group, method: str, arguments: tuple[Any, ...]) -> Parcel:
        self.count()
        return super()._call(group, method, arguments)

    def settle(self) -> None:
        self.count()
        super().settle()

    def gather(self, parcel: Parcel) -> Any:
        self.count()
        return super().gather(parcel)

    def relaunched(self) -> LocalFleet:
        if self.bad_relaunches:
            self.bad_relaunches -= 1
            raise PartyLost("another one died meanwhile")
        return super().relaunched()


def run(config: ExperimentConfig, at: int = 0, relaunches: int = 0) -> tuple[Result, int]:
    """The result, and the operations of the fleet before it was lost, or in all."""
    fleets: list[Losing] = []

    def make(config: ExperimentConfig, plan: Blueprint) -> Fleet:
        fleets.append(Losing(plan, at, relaunches))
        return fleets[-1]

    return Experiment(config, make).run(), fleets[0].done


@pytest.mark.parametrize(
    "method",
    [
        "splitfed_v1",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fedavg", "hierfl", "sl", "mergesfl", "hsfl")
        ),
    ],
)
def test_a_loss_at_any_moment_changes_no_bit(method: str) -> None:
    """From the first call over training, evaluation, checkpoints to the very last, for the final weights."""
    config = small.config(method)
    quiet, operations = run(config)
    for at in (1, operations // 2, operations * 3 // 4, operations):
        found, done = run(config, at)
        assert done == at
        assert found.weights_sha256 == quiet.weights_sha256, at
        assert small.numbers(found.history) == small.numbers(quiet.history), at


def test_only_what_came_after_the_checkpoint_is_done_again() -> None:
    """Lost with the final weights, before the row of round 4 is out: rounds 3 and 4 are run twice."""
    config = small.config("fedavg")
    last = run(config)[1]
    running = Experiment(config, lambda config, plan: Losing(plan, last))
    assert [row["round"] for row in running.rounds()] == [0, 1, 2, 3, 3, 4]


def test_a_loss_while_relaunching_counts_as_another_one() -> None:
    quiet, operations = run(small.config("fedavg"))
    patient = small.config("fedavg", FleetConfig(relaunches=3))
    assert run(patient, operations // 2, relaunches=2)[0].weights_sha256 == quiet.weights_sha256
    with pytest.raises(PartyLost, match="another one died meanwhile"):
        run(patient, operations // 2, relaunches=3)


def test_without_relaunches_the_first_loss_ends_the_run() -> None:
    with pytest.raises(PartyLost, match="an actor died"):
        run(small.config("fedavg", FleetConfig(relaunches=0)), at=20)


class Stop(Observer):
    """Asks for an end after round 3."""

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        experiment.stop_requested = row["round"] == 3


def interrupted(folder: Path, at: int = 0) -> tuple[str, int]:
    """What is said of a run that is asked to stop, and the operations of its fleet until then."""
    fleets: list[Losing] = []

    def make(config: ExperimentConfig, plan: Blueprint) -> Fleet:
        fleets.append(Losing(plan, at))
        return fleets[-1]

    with pytest.raises(KeyboardInterrupt) as caught:
        Experiment(small.config("fedavg"), make).run(folder, [Stop()])
    return str(caught.value), fleets[0].done


def test_a_loss_in_the_checkpoint_of_a_stop_ends_it_at_the_one_before(tmp_path: Path) -> None:
    """Instead of one of round 3 there is the regular one of round 2, and the run can go on from it."""
    said, operations = interrupted(tmp_path)
    assert said == "after round 3"
    checkpoint.clear(tmp_path)
    said, done = interrupted(tmp_path, operations)
    assert (said, done) == ("after round 2", operations)
    state = checkpoint.load_latest(tmp_path)
    assert state is not None
    resumed = Experiment(small.config("fedavg"))
    resumed.load_state_dict(state)
    quiet = run(small.config("fedavg"))[0]
    assert resumed.round == 2
    assert resumed.run().weights_sha256 == quiet.weights_sha256
