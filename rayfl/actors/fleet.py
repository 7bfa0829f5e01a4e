"""The fleet on Ray: one actor per host, calls that run ahead, tensors through the object store."""

import contextlib
import logging
import os
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayfl.actors.placement import ACTORS, choose_actors, nodes, preflight, requests, this_machine
from rayfl.actors.shell import Poison
from rayfl.errors import PartyLost, RunFailed
from rayfl.fleet import Fleet
from rayfl.host import Blueprint
from rayfl.layout import FleetConfig, plan_layout
from rayfl.shell import Request

ENVIRONMENT = {
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
"""What workers must find in their environment: tensors are mapped from the store, not copied; and workers
are no less urgent than other processes (Ray's default starves them on a shared machine)."""


CALLS_PER_MESSAGE = 8


def ensure_ray(num_cpus: int | None = None) -> bool:
    """Start Ray on this machine unless somebody has; tells whether it was us, who then stops it."""
    os.environ.update(ENVIRONMENT)
    if ray.is_initialized():
        return False
    if num_cpus is None and not os.environ.get("RAY_ADDRESS"):
        num_cpus = len(os.sched_getaffinity(0))
    logging.getLogger("ray").setLevel(logging.ERROR)
    before = random.getstate()
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    # Ray draws from Python's own generator, which is the caller's.
    random.setstate(before)
    return True


@contextlib.contextmanager
def running_ray() -> Iterator[None]:
    """The Ray instance there is, or one that is stopped at the end."""
    ours = ensure_ray()
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


class _Actor:
    """The way to one actor."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._call = handle.call.options(num_returns=0)
        self._waiting: list[Request] = []

    def call(self, request: Request, leaves: Sequence[Any]) -> None:
        # Calls that need nothing from elsewhere share a message: it costs as much as a small step.
        if not leaves:
            self._waiting.append(request)
            if len(self._waiting) >= CALLS_PER_MESSAGE:
                self._send()
            return
        self._send()
        self._call.remote((request,), *leaves)

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> Any:
        self._send()
        return self._handle.export.remote(ticket, keys)

    def settle(self, free: Sequence[int]) -> Any:
        self._send()
        return self._handle.settle.remote(tuple(free))

    def _send(self) -> None:
        if self._waiting:
            self._call.remote(tuple(self._waiting))
            self._waiting = []


def check_here(blueprint: Blueprint, config: FleetConfig) -> None:
    """Refuse what could not start on this machine, where this is the one that Ray would start on."""
    if not ray.is_initialized() and not os.environ.get("RAY_ADDRESS"):
        here = [this_machine()]
        chosen = choose_actors(config, blueprint.facts.num_clients, here)
        preflight(plan_layout(blueprint, chosen), chosen, here)


class ActorPool:
    """Actors that outlive a fleet, for the next one: starting a process costs seconds."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, float, float], list[Any]] = defaultdict(list)

    def take(self, kind: str, need: Mapping[str, float]) -> Any:
        """An idle actor of a kind that reserves just this, or a new one."""
        idle = self._idle[kind, need["num_cpus"], need["num_gpus"]]
        return idle.pop() if idle else start_actor(kind, need)

    def put(self, kind: str, need: Mapping[str, float], handle: Any) -> None:
        """Keep an actor that nobody needs now."""
        self._idle[kind, need["num_cpus"], need["num_gpus"]].append(handle)

    def close(self) -> None:
        """Stop all idle actors."""
        for handles in self._idle.values():
            for handle in handles:
                ray.kill(handle)
        self._idle.clear()


def start_actor(kind: str, need: Mapping[str, float]) -> Any:
    """A new actor, inside the placement group that this process belongs to, if any."""
    options: dict[str, Any] = {**need, "max_restarts": 0}
    group = get_current_placement_group()
    if group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group)
    return ray.remote(ACTORS[kind]).options(**options).remote()


class RayFleet(Fleet):
    """Parties in Ray actors. Uses the Ray instance there is, or starts one and stops it on closing."""

    def __init__(self, blueprint: Blueprint, config: FleetConfig, pool: ActorPool | None = None) -> None:
        self._handles: list[tuple[str, dict[str, float], Any]] = []
        self._pool = pool
        self._lost = False
        check_here(blueprint, config)
        self._owns_ray = ensure_ray()
        try:
            machines = nodes()
            config = choose_actors(config, blueprint.facts.num_clients, machines)
            super().__init__(blueprint, plan_layout(blueprint, config))
            preflight(self.layout, config, machines)
            self._start(config)
        except BaseException:
            self.close()
            raise

    def _start(self, config: FleetConfig) -> None:
        needs = requests(self.layout, config)
        for plan, need in zip(self.layout.hosts, needs, strict=True):
            take = self._pool.take if self._pool is not None else start_actor
            self._handles.append((plan.kind, need, take(plan.kind, need)))
        payload = ray.put(cloudpickle.dumps(self.blueprint))
        paths = [os.path.abspath(path) for path in sys.path]
        skip = config.on_client_error == "skip"
        ready = [
            handle.host.remote(payload, paths, self.layout.members(host), self.layout.topology, skip)
            for host, (_, _, handle) in enumerate(self._handles)
        ]
        _, late = ray.wait(ready, num_returns=len(ready), timeout=config.start_timeout_s)
        if late:
            raise RunFailed(
                f"{len(late)} of {len(ready)} actors did not start within {config.start_timeout_s:g} s: "
                f"the cluster is busy or short of memory; raise fleet.start_timeout_s or lower "
                f"fleet.client_actors, and go on with --resume"
            )
        self.pids: list[int] = self._resolve(ready)
        self._hosts = [_Actor(handle) for _, _, handle in self._handles]

    def _resolve(self, leaves: Sequence[Any]) -> list[Any]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                values: list[Any] = ray.get(list(leaves))
        except ray.exceptions.RayActorError as error:
            raise self._loss() from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ray.exceptions.RayActorError):
                raise self._loss() from error
            raise
        for value in values:
            if isinstance(value, Poison):
                raise value.cause
        return values

    def _loss(self) -> PartyLost:
        self._lost = True
        return PartyLost(f"an actor died in round {self._t}")

    def close(self) -> None:
        """Let go of the actors, and stop Ray if it was started here."""
        super().close()
        for kind, need, handle in self._handles:
            if self._pool is None or self._lost:
                ray.kill(handle)
            else:
                self._pool.put(kind, need, handle)
        self._handles = []
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False
