"""SIGKILL for an actor of each role, in the middle of a run: the bits of an undisturbed run come out."""

import os
import signal
from typing import TYPE_CHECKING

import pytest
import small

from benchmarks.kills import Bench, Kill
from rayfl.errors import PartyLost
from rayfl.experiment import Experiment
from rayfl.fleet_config import FleetConfig

if TYPE_CHECKING:
    from rayfl.actors.fleet import ActorPool

pytestmark = pytest.mark.ray

KILLS = {
    "client, in the first round": Kill("fedavg", "client", True, 4, 0.02),
    "client, while others wait for it": Kill("sl", "client", False, 150, 0.0),
    "edge server": Kill("hsfl", "edge", True, 60, 0.05),
    "main server": Kill("splitfed_v2", "main", True, 100, 0.0),
    "fed server": Kill("hierfl", "fed", True, 20, 0.01),
}


@pytest.fixture(scope="module")
def bench(actors: "ActorPool") -> Bench:
    return Bench(actors)


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_a_killed_actor_changes_no_bit(bench: Bench, kill: Kill) -> None:
    outcome = bench.strike(kill)
    assert outcome.recoveries == 1
    assert outcome.identical


def test_in_the_end_only_the_dead_are_replaced(actors: "ActorPool") -> None:
    """The other processes are those of before."""
    from rayfl.actors.fleet import RayFleet

    apart = FleetConfig(kind="ray", client_actors=2, placement="separate", cpus_per_actor=0)
    running = Experiment(
        small.config("fedavg", apart), lambda config, plan: RayFleet(plan, config.fleet, actors)
    )
    assert isinstance(running.fleet, RayFleet)
    before = running.fleet.pids
    os.kill(before[1], signal.SIGKILL)
    assert running.run().status == "FINISHED"
    assert isinstance(running.fleet, RayFleet)
    after = running.fleet.pids
    running.close()
    assert len(set(before) & set(after)) == len(before) - 1


def test_the_last_line_says_who_died(actors: "ActorPool") -> None:
    from rayfl.actors.fleet import RayFleet

    apart = FleetConfig(kind="ray", client_actors=2, placement="separate", cpus_per_actor=0, relaunches=0)
    running = Experiment(
        small.config("fedavg", apart), lambda config, plan: RayFleet(plan, config.fleet, actors)
    )
    assert isinstance(running.fleet, RayFleet)
    os.kill(running.fleet.pids[1], signal.SIGKILL)
    with pytest.raises(PartyLost, match=r"the actor of clients 2-3 died in round \d"):
        running.run()
    running.close()
