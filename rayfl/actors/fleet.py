"""The fleet on Ray: one actor per host, calls that run ahead, tensors through the object store."""

import contextlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle

from rayfl import allotment
from rayfl.actors.lifeline import Lifeline
from rayfl.actors.losses import cause, explain, hosted
from rayfl.actors.placement import this_machine
from rayfl.actors.plan import Plan, plan_fleet, whereabouts
from rayfl.actors.pool import ActorPool, Seat, start_actor
from rayfl.actors.shell import Poison
from rayfl.actors.starting import start_ray
from rayfl.actors.waiting import still_there, wait_for_room, wait_until_ready
from rayfl.errors import PartyLost, RunFailed
from rayfl.fleet import Fleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.shell import Request

ENVIRONMENT = {
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
"""What workers must find in their environment: tensors are mapped from the store, not copied; and workers
are no less urgent than other processes (Ray's default starves them on a shared machine)."""


CALLS_PER_MESSAGE = 8
ANSWER_S = 5.0
"""An actor that is busy for longer is not waited for: a new process starts in about this time."""


def ensure_ray(num_cpus: int | None = None) -> bool:
    """Start Ray on this machine unless somebody has; tells whether it was us, who then stops it."""
    os.environ.update(ENVIRONMENT)
    if ray.is_initialized():
        return False
    if num_cpus is None and not os.environ.get("RAY_ADDRESS"):
        num_cpus = allotment.num_cpus()
    logging.getLogger("ray").setLevel(logging.ERROR)
    before = random.getstate()
    start_ray(
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
        self._sent = 0

    def call(self, request: Request, leaves: Sequence[Any]) -> None:
        # Calls that need nothing from elsewhere share a message: it costs as much as a small step.
        if not leaves:
            self._waiting.append(request)
            if len(self._waiting) >= CALLS_PER_MESSAGE:
                self._send()
            return
        self._send()
        self._sent += 1
        self._call.remote((request,), *leaves)

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> Any:
        self._send()
        return self._handle.export.remote(ticket, keys)

    def settle(self, free: Sequence[int]) -> Any:
        self._send()
        return self._handle.settle.remote(tuple(free), self._sent)

    def _send(self) -> None:
        if self._waiting:
            self._sent += 1
            self._call.remote(tuple(self._waiting))
            self._waiting = []


def check_here(blueprint: Blueprint, config: FleetConfig) -> None:
    """Refuse what could not start on this machine, where this is the one that Ray would start on."""
    if not ray.is_initialized() and not os.environ.get("RAY_ADDRESS"):
        plan_fleet(blueprint, config, [this_machine()])


class RayFleet(Fleet):
    """Parties in Ray actors. Uses the Ray instance there is, or starts one and stops it on closing."""

    def __init__(
        self,
        blueprint: Blueprint,
        config: FleetConfig,
        pool: ActorPool | None = None,
        after_loss: bool = False,
    ) -> None:
        self._handles: list[tuple[str, Seat, Any]] = []
        self._config, self._pool = config, pool
        self._lost = False
        check_here(blueprint, config)
        self._owns_ray = ensure_ray()
        try:
            self._lifeline = Lifeline("go on with --resume")
            self._launch(blueprint, after_loss)
        except BaseException:
            self.close()
            raise

    def _launch(self, blueprint: Blueprint, after_loss: bool) -> None:
        plan = wait_for_room(blueprint, self._config, self._config.start_timeout_s if after_loss else 0.0)
        super().__init__(blueprint, plan.layout)
        self.whereabouts = whereabouts(plan)
        try:
            self._start(plan)
        except PartyLost:
            if self._pool is None or still_there(plan):
                raise
            # Ray tells that actors are dead seconds before it tells that their node is.
            self._spare(self._pool)
            self._lost = False
            self._launch(blueprint, after_loss=True)

    def _start(self, plan: Plan) -> None:
        take = self._pool.take if self._pool is not None else start_actor
        for host, need, machine in zip(plan.layout.hosts, plan.needs, plan.machines, strict=True):
            seat = Seat(need, machine)
            self._handles.append((host.kind, seat, take(host.kind, seat)))
        if self._pool is not None:
            self._pool.make_room()
        payload = ray.put(cloudpickle.dumps(self.blueprint))
        paths = [os.path.abspath(path) for path in sys.path]
        ready = [
            handle.host.remote(payload, paths, self.layout.members(host), self.layout.topology, self._config)
            for host, (_, _, handle) in enumerate(self._handles)
        ]
        try:
            wait_until_ready(ready, plan, self._config.start_timeout_s, self._lifeline)
        except RunFailed:
            self._lost = True
            raise
        self.pids: list[int] = self._resolve(ready)
        self._hosts = [_Actor(handle) for _, _, handle in self._handles]

    def _resolve(self, leaves: Sequence[Any]) -> list[Any]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                values = self._lifeline.get(list(leaves))
        except ray.exceptions.RayError as error:
            self._lifeline.check()
            failure = explain(error, self._who(error), self._t)
            if failure is None:
                raise
            self._lost = True
            failure.add_note(str(cause(error)))
            raise failure from None
        for value in values:
            if isinstance(value, Poison):
                raise value.cause
        return values

    def _who(self, error: ray.exceptions.RayError) -> str:
        """The actor that an error is about."""
        actor_id = getattr(cause(error), "actor_id", None)
        for host, (_, _, handle) in enumerate(self._handles):
            if handle._actor_id.hex() == actor_id:
                return hosted(self.layout.members(host))
        return "an actor"

    def close(self) -> None:
        """Let go of the actors, and stop Ray if it was started here."""
        super().close()
        for kind, seat, handle in self._handles:
            if self._pool is None or self._lost:
                ray.kill(handle)
            else:
                self._pool.put(kind, seat, handle)
        self._handles = []
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False

    def relaunched(self) -> "RayFleet":
        """The actors that are still well are kept, since starting a process costs seconds."""
        self._lifeline.check()
        self._hosts = []
        spared = self._pool or ActorPool()
        self._spare(spared)
        try:
            fleet = RayFleet(self.blueprint, self._config, spared, after_loss=True)
        finally:
            if self._pool is None:
                spared.close()
        fleet._pool = self._pool
        fleet._owns_ray, self._owns_ray = self._owns_ray, False
        return fleet

    def _spare(self, pool: ActorPool) -> None:
        """Give the actors that are well to a pool and stop the others."""
        for (kind, seat, handle), well in zip(self._handles, self._well(), strict=True):
            if well:
                pool.put(kind, seat, handle)
            else:
                ray.kill(handle)
        self._handles = []

    def _well(self) -> list[bool]:
        """Which actors answer soon. One that doesn't is dead, hangs, or is at work on what is lost anyway."""
        answers = [handle.__ray_ready__.remote() for _, _, handle in self._handles]
        if answers:
            ray.wait(answers, num_returns=len(answers), timeout=ANSWER_S)
        return [_came(answer) for answer in answers]


def _came(answer: Any) -> bool:
    try:
        ray.get(answer, timeout=0)
    except ray.exceptions.RayError:
        return False
    return True
