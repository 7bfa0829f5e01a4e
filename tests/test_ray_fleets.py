"""Parties in Ray actors give the same bits as parties in this process, and fail as clearly."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from tiny import Federation, blueprint, identical, run
from torch import Tensor

from rayfl.actors.fleet import ActorPool, RayFleet
from rayfl.actors.shell import PartyFailed
from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.splitfed_v1 import SplitFedV1
from rayfl.config import ExperimentConfig
from rayfl.data import DataConfig
from rayfl.errors import PartyLost
from rayfl.experiment import Experiment
from rayfl.fleet_config import FleetConfig
from rayfl.host import Batch, Blueprint
from rayfl.messages import Gradient, SmashedBatch
from rayfl.models import ModelConfig
from rayfl.roles import ReplicaServer

pytestmark = pytest.mark.ray

LAYOUTS = {
    "1 actor": {"client_actors": 1},
    "2 actors": {"client_actors": 2},
    "an actor per client": {"clients_per_actor": 1},
    "2 actors, servers separate": {"client_actors": 2, "placement": "separate"},
    "4 actors, 2 main shards": {"client_actors": 4, "placement": "separate", "main_shards": 2},
}


@pytest.fixture(scope="module")
def pool(ray_cluster: None) -> Iterator[ActorPool]:
    """Actors shared by the tests of this file."""
    shared = ActorPool()
    yield shared
    shared.close()


def fleet(plan: Blueprint, pool: ActorPool | None, **layout: Any) -> RayFleet:
    return RayFleet(plan, FleetConfig(kind="ray", cpus_per_actor=0, **layout), pool)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_layout_gives_the_bits_and_the_ledger_of_one_process(pool: ActorPool, method: str) -> None:
    plan = blueprint(
        method, (7, 3, 10, 5), "batch", num_edges=2, momentum=0.9, participation=0.75, dtype="float32"
    )
    here = Federation(plan).run(2)
    for name, layout in LAYOUTS.items():
        there = Federation(plan, fleet(plan, pool, **layout))
        there.run(2)
        assert identical(here.weights(), there.weights()), name
        for t in (1, 2):
            assert here.traffic(t) == there.traffic(t), name
        there.fleet.close()


@pytest.mark.parametrize("method", ["fedprox", "sl", "splitfed_v3", "hsfl"])
def test_kept_state_travels_too(pool: ActorPool, method: str) -> None:
    """Momentum kept over rounds and BatchNorm statistics of one's own live where the party lives."""
    plan = blueprint(
        method, (7, 3, 10, 5), "batch", num_edges=2, momentum=0.9, reset_optimizer="keep", bn="local"
    )
    there = Federation(plan, fleet(plan, pool, client_actors=2, placement="separate")).run(3)
    assert identical(run(plan, 3), there.weights())
    there.fleet.close()


class Boom(FedAvg):
    """Client 2 fails in round 2."""

    class Client(FedAvg.Client):
        """Raises something that doesn't pickle."""

        def loss(self, batch: Batch) -> Tensor:
            if self.id == 2 and self.learner is not None and self.learner.lr < 0.1:
                raise Unpicklable(lambda: None)
            return super().loss(batch)


class Unpicklable(Exception):
    """Can't travel."""

    def __str__(self) -> str:
        return "boom c2"


class ServerBoom(SplitFedV1):
    """The server-side half fails."""

    class MainServer(ReplicaServer):
        """Raises on its second step."""

        def learn(self, learner: Any, batch: SmashedBatch) -> Gradient:
            if len(batch.labels) < 4:
                raise ValueError("short batch on the server")
            return super().learn(learner, batch)


def test_a_failing_client_stops_the_run_and_names_itself(pool: ActorPool) -> None:
    plan = blueprint(Boom, lr_schedule="exponential")
    there = Federation(plan, fleet(plan, pool, client_actors=2))
    with pytest.raises(PartyFailed, match=r"boom c2 in client 2, round 2, Client\.train") as caught:
        there.run(3)
    assert "raise Unpicklable(lambda: None)" in "".join(caught.value.__notes__)
    there.fleet.close()


def test_a_failing_client_can_be_skipped(pool: ActorPool) -> None:
    plan = blueprint(Boom, lr_schedule="exponential")
    there = Federation(plan, fleet(plan, pool, client_actors=2, on_client_error="skip")).run(2)
    assert list(there.fleet.failed_clients) == [2]
    there.fleet.close()


def test_a_failing_server_stops_the_run(pool: ActorPool) -> None:
    plan = blueprint(ServerBoom)
    there = Federation(plan, fleet(plan, pool, client_actors=2, placement="separate"))
    with pytest.raises(PartyFailed, match=r"short batch on the server in main \d, round 1"):
        there.run(1)
    there.fleet.close()


def small(**fleet_keys: Any) -> ExperimentConfig:
    return ExperimentConfig(
        rounds=4,
        checkpoint_every=2,
        algorithm=SplitFedV1.Config(batch_size=64),
        data=DataConfig(name="digits", num_clients=4),
        model=ModelConfig(name="mlp"),
        fleet=FleetConfig(**fleet_keys),
    )


def experiment_on(pool: ActorPool, config: ExperimentConfig) -> Experiment:
    return Experiment(config, lambda config, plan: RayFleet(plan, config.fleet, pool))


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_actor_costs_a_round_and_changes_no_bit(pool: ActorPool, victim: int) -> None:
    """A client actor, a main server shard or the fed server gets SIGKILL in round 3."""
    undisturbed = Experiment(small()).run().weights_sha256
    config = small(kind="ray", client_actors=1, placement="separate", cpus_per_actor=0)
    experiment = experiment_on(pool, config)
    step = experiment.step

    def step_and_kill() -> dict[str, float]:
        if experiment.round == 2 and not killed:
            killed.append(victim)
            os.kill(experiment.fleet.pids[victim], signal.SIGKILL)  # type: ignore[attr-defined]
        return step()

    killed: list[int] = []
    experiment.step = step_and_kill  # type: ignore[method-assign]
    result = experiment.run()
    experiment.close()
    assert killed
    assert result.weights_sha256 == undisturbed
    assert [row["round"] for row in result.history] == [0, 1, 2, 3, 4]


def test_losing_actors_again_and_again_ends_the_run(pool: ActorPool) -> None:
    experiment = experiment_on(pool, small(kind="ray", client_actors=1, cpus_per_actor=0, relaunches=0))
    os.kill(experiment.fleet.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(PartyLost, match=r"the actor of clients 0-.* died in round 0"):
        experiment.run()
    experiment.close()


def test_the_callers_ray_is_left_alone(pool: ActorPool) -> None:
    plan = blueprint("fedavg")
    there = fleet(plan, pool, client_actors=1)
    there.close()
    assert ray.is_initialized()


def test_an_experiment_on_ray_scores_like_one_here(pool: ActorPool) -> None:
    here = Experiment(small()).run()
    away = experiment_on(pool, small(kind="ray", client_actors=2, cpus_per_actor=0))
    there = away.run()
    away.close()
    for mine, its in zip(here.history, there.history, strict=True):
        assert {k: v for k, v in mine.items() if not k.startswith("wall")} == {
            k: v for k, v in its.items() if not k.startswith("wall")
        }
