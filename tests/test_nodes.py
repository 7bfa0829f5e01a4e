"""Fleets on a head and two worker nodes: who sits where, what the numbers are, and a node that dies.

The cluster lives in a process of its own, since one process can't be in two; the functions below that take a
``Site`` run there.
"""

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from tiny import Federation, blueprint, identical, run

from rayfl.config import ExperimentConfig
from rayfl.errors import RunFailed, UserError
from rayfl.experiment import Experiment
from rayfl.fleet_config import FleetConfig

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Site:
    """The cluster: a head without CPUs, and workers with two each. One has a custom resource as well."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        from rayfl.actors.fleet import ENVIRONMENT, ensure_ray
        from rayfl.actors.pool import ActorPool

        no_idle_workers = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
        # Ray looks at every node all three seconds and gives it up after the fifth miss.
        quick = {"RAY_health_check_initial_delay_ms": "500", "RAY_health_check_period_ms": "500"}
        # Workers find this file and its neighbours there.
        own = {"PYTHONPATH": str(Path(__file__).parent)}
        os.environ.update({**ENVIRONMENT, **no_idle_workers, **quick, **own})
        head = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers = {"a": self.add("a", resources={"big": 1}), "b": self.add("b")}
        os.environ["RAY_ADDRESS"] = self.cluster.address
        ensure_ray()
        self.pool = ActorPool()

    def add(self, zone: str, **resources: Any) -> Any:
        """A worker more."""
        labels = {"zone": zone}
        return self.cluster.add_node(num_cpus=2, labels=labels, include_log_monitor=False, **resources)

    def fleet(self, plan: Any, **config: Any) -> Any:
        """A fleet whose actors the next one may take over."""
        from rayfl.actors.fleet import RayFleet

        return RayFleet(plan, FleetConfig(kind="ray", **config), self.pool)

    def zones(self, fleet: Any) -> list[str]:
        """The zone of the node that each actor is really on."""
        import ray

        names = {node["NodeID"]: node["Labels"].get("zone", "head") for node in ray.nodes()}
        where = [handle.__ray_call__.remote(_node_id) for _, _, handle in fleet._handles]
        return [names[node] for node in ray.get(where)]

    def close(self) -> None:
        """End everything."""
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def _node_id(actor: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


_site: Site | None = None


def _on_site(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    global _site
    if _site is None:
        _site = Site()
    return function(_site, *arguments, **settings)


Inside = Callable[..., Any]
FOUR: dict[str, Any] = {"client_actors": 4, "start_timeout_s": 600.0}
"""As many as two workers have room for."""


@pytest.fixture(scope="module")
def inside() -> Iterator[Inside]:
    """Runs a function in the process with the cluster."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda *arguments, **settings: process.submit(_on_site, *arguments, **settings).result()
        process.submit(_on_site, Site.close).result()


def separate(site: Site, method: str, **config: Any) -> tuple[list[str], str, bool]:
    """The zones of a fleet with separate servers, its line, and whether it has the bits of one process."""
    plan = blueprint(method, (7, 3, 10, 5), num_edges=2, participation=0.75, dtype="float32")
    there = Federation(plan, site.fleet(plan, client_actors=4, placement="separate", **config))
    there.run(2)
    found = site.zones(there.fleet), there.fleet.whereabouts, identical(run(plan, 2), there.weights())
    there.fleet.close()
    return found


def test_splitfed_v1_shards_sit_with_their_clients(inside: Inside) -> None:
    """Clients 0-3, shards 0 and 1 of two clients each, the fed server."""
    zones, line, same = inside(separate, "splitfed_v1", main_shards=2)
    first, second = zones[0], zones[3]
    assert {first, second} == {"a", "b"}
    assert zones == [first, first, second, second, first, second, first]
    assert line == "4 client actors on 2 nodes (2 + 2), 3 server actors on 2"
    assert same


def test_hsfl_edges_sit_with_their_clients(inside: Inside) -> None:
    """Clients 0-3, the main server, edges 0 and 1 of two clients each, the fed server."""
    zones, _, same = inside(separate, "hsfl")
    first, second = zones[0], zones[3]
    assert zones == [first, first, second, second, first, first, second, first]
    assert same


def marked(site: Site) -> list[list[str]]:
    """The zones of fleets that ask for a label, for a resource that one node has, and for two labels."""
    found = []
    two = {"labels": ("zone=b",), "server_labels": ("zone=a",), "placement": "separate"}
    for config in ({"labels": ("zone=b",)}, {"resources": {"big": 0.5}}, two):
        fleet = site.fleet(blueprint("fedavg"), client_actors=1, **config)
        found.append(site.zones(fleet))
        fleet.close()
    site.pool.close()
    return found


def test_labels_and_resources_are_heeded(inside: Inside) -> None:
    """Without them all would be on the first node."""
    assert inside(marked) == [["b"], ["a"], ["b", "a"]]


def refused(site: Site) -> str:
    """What is said of a label that no node has."""
    with pytest.raises(UserError) as caught:
        site.fleet(blueprint("fedavg"), client_actors=1, labels=("zone=c",))
    return str(caught.value)


def test_what_no_node_has_is_refused_at_once(inside: Inside) -> None:
    assert "no node has zone=c" in inside(refused)
    assert "zone=a, zone=b" in inside(refused)


class Job:
    """Somebody else's."""

    def ready(self) -> bool:
        """It has started."""
        return True


def raced(site: Site) -> tuple[list[str], str]:
    """The zones of a fleet when another job has the CPUs of ``a``, and what is said when it has all."""
    import ray

    takes_a = ray.remote(Job).options(num_cpus=2, label_selector={"zone": "a"}).remote()
    ray.get(takes_a.ready.remote())
    fleet = site.fleet(blueprint("fedavg"), client_actors=2)
    zones = site.zones(fleet)
    fleet.close()
    with pytest.raises(RunFailed) as caught:
        site.fleet(blueprint("fedavg"), client_actors=4, start_timeout_s=3.0)
    ray.kill(takes_a)
    site.pool.close()
    return zones, str(caught.value)


def test_somebody_else_takes_the_room(inside: Inside) -> None:
    zones, said = inside(raced)
    assert zones == ["b", "b"]
    assert "2 of 4 actors did not start within 3 s: 2 client actors with 1 CPU and 0 GPU" in said
    assert "Free are 0 CPU" in said
    assert "--resume" in said


def in_a_trial(site: Site) -> tuple[list[str], bool]:
    """The zones of a fleet inside a reservation such as Tune makes, and whether its bits are the same."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from rayfl.actors.placement import bundles, nodes, reservation
    from rayfl.loading.experiments import load_experiment

    config = load_experiment(
        "splitfed_v1.digits",
        {
            "data.num_clients": 4,
            "fleet": {"kind": "ray", "client_actors": 2, "placement": "separate", "labels": ["zone=b"]},
            "fleet.cpus_per_actor": 0.5,
            "fleet.server_resources": {"big": 0.25},
        },
    )
    reserved = reservation(bundles(config, nodes()))
    group = ray.util.placement_group(**{**reserved, "bundles": reserved["bundles"][1:]})
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    task = ray.remote(_fleet_inside).options(num_cpus=0, scheduling_strategy=strategy)
    zones, same = ray.get(task.remote(config.fleet))
    ray.util.remove_placement_group(group)
    return zones, same


def _fleet_inside(config: FleetConfig) -> tuple[list[str], bool]:
    from rayfl.actors.fleet import RayFleet

    plan = blueprint("splitfed_v1", (7, 3, 10, 5), dtype="float32")
    there = Federation(plan, RayFleet(plan, config))
    there.run(2)
    return Site.zones(None, there.fleet), identical(run(plan, 2), there.weights())  # type: ignore[arg-type]


def test_a_trial_has_what_its_fleet_asks_for(inside: Inside) -> None:
    """Two clients where the label is, two shards and the fed server where the resource is."""
    zones, same = inside(in_a_trial)
    assert zones == ["b", "b", "a", "a", "a"]
    assert same


def small(**fleet: Any) -> ExperimentConfig:
    from rayfl.algorithms.splitfed_v1 import SplitFedV1
    from rayfl.data import DataConfig
    from rayfl.models import ModelConfig

    return ExperimentConfig(
        rounds=4,
        checkpoint_every=2,
        algorithm=SplitFedV1.Config(batch_size=64),
        data=DataConfig(name="digits", num_clients=4),
        model=ModelConfig(name="mlp"),
        fleet=FleetConfig(**fleet),
    )


def bereaved(site: Site, comes_back: bool, folder: Path, **fleet: Any) -> dict[str, Any]:
    """A run whose node ``b`` gets SIGKILL before round 3, and comes back while it is waited for or never."""
    from rayfl.actors import waiting
    from rayfl.actors.fleet import RayFleet

    config = small(kind="ray", **fleet)
    experiment = Experiment(config, lambda config, plan: RayFleet(plan, config.fleet, site.pool))
    step, lines = experiment.step, [experiment.fleet.whereabouts]  # type: ignore[attr-defined]

    def wait(seconds: float) -> None:
        if comes_back and "b" not in site.workers:
            site.workers["b"] = site.add("b")
        time.sleep(seconds)

    def step_and_kill() -> dict[str, float]:
        if experiment.round == 2 and not killed:
            killed.append(True)
            site.cluster.remove_node(site.workers.pop("b"), allow_graceful=False)
            if not comes_back:
                shorter = dataclasses.replace(config.fleet, start_timeout_s=10.0)
                experiment.fleet._config = shorter  # type: ignore[attr-defined]
        return step()

    killed: list[bool] = []
    experiment.step = step_and_kill  # type: ignore[method-assign]
    said = ""
    try:
        with mock.patch.object(waiting, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait)):
            experiment.run(folder)
    except RunFailed as failure:
        said = str(failure)
    lines.append(experiment.fleet.whereabouts)  # type: ignore[attr-defined]
    result = experiment.result() if not said else None
    relaunches = experiment._relaunches
    experiment.close()
    return {
        "killed": bool(killed),
        "sha": result and result.weights_sha256,
        "rounds": result and [row["round"] for row in result.history],
        "lines": lines,
        "relaunches": relaunches,
        "said": said,
    }


def resumed(site: Site, folder: Path, **fleet: Any) -> str:
    """The weights of the same run, taken up from its checkpoint with the node back."""
    from rayfl import runs
    from rayfl.actors.fleet import RayFleet

    site.workers["b"] = site.add("b")
    experiment = Experiment(
        small(kind="ray", **fleet), lambda config, plan: RayFleet(plan, config.fleet, site.pool)
    )
    state = runs.checkpoint.load_latest(folder)
    assert state is not None
    assert state["round"] == 2
    experiment.load_state_dict(state)
    sha = experiment.run(folder).weights_sha256
    experiment.close()
    return sha


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The weights of the run in one process."""
    return Experiment(small()).run().weights_sha256


def test_a_dead_node_costs_a_relaunch_and_changes_no_bit(
    inside: Inside, undisturbed: str, tmp_path: Path
) -> None:
    """Where the number of client actors is open, the run goes on at once with as many as fit on the rest."""
    found = inside(bereaved, True, tmp_path)
    assert found["killed"]
    assert found["sha"] == undisturbed
    assert found["rounds"] == [0, 1, 2, 3, 4]
    assert found["lines"] == ["4 client actors on 2 nodes (2 + 2)", ""]
    assert found["relaunches"] == 1


def test_a_node_that_comes_back_is_waited_for(inside: Inside, undisturbed: str, tmp_path: Path) -> None:
    inside(_bring_back)
    found = inside(bereaved, True, tmp_path, **FOUR)
    assert found["killed"]
    assert found["sha"] == undisturbed
    assert found["lines"] == ["4 client actors on 2 nodes (2 + 2)"] * 2


def test_a_node_that_stays_away_ends_the_run_and_resume_goes_on(
    inside: Inside, undisturbed: str, tmp_path: Path
) -> None:
    found = inside(bereaved, False, tmp_path, **FOUR)
    assert "no node came back within 10 s" in found["said"]
    assert "4 client actors with 1 CPU and 0 GPU each don't fit: there are 2 CPU" in found["said"]
    assert "bring the node back and use --resume" in found["said"]
    assert inside(resumed, tmp_path, **FOUR) == undisturbed


def _bring_back(site: Site) -> None:
    if "b" not in site.workers:
        site.workers["b"] = site.add("b")
