"""Starting actors on the machines chosen for them, and keeping them for the next fleet."""

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayfl.actors.placement import ACTORS
from rayfl.machines import Machine, Need

_NODE = "ray.io/node-id"
"""The label that every node has."""


@dataclass(frozen=True)
class Seat:
    """What an actor reserves, and where."""

    need: Need
    machine: Machine

    def same(self, other: "Seat") -> bool:
        """Whether an actor on one of them can do the work of one on the other."""
        mine, its = ((seat.need, seat.machine.node, seat.machine.bundle) for seat in (self, other))
        return mine == its


def start_actor(kind: str, seat: Seat) -> Any:
    """A new actor on its node or, in a trial, in its part of what the trial has reserved."""
    need, machine = seat.need, seat.machine
    options: dict[str, Any] = {
        "num_cpus": need.amounts.get("CPU", 0.0),
        "num_gpus": need.amounts.get("GPU", 0.0),
        "resources": {name: amount for name, amount in need.amounts.items() if name not in ("CPU", "GPU")},
        "max_restarts": 0,
    }
    if machine.bundle is not None:
        group: Any = get_current_placement_group()
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, machine.bundle)
    else:
        options["label_selector"] = {_NODE: machine.node, **need.labels}
        # Where somebody else has taken the room meanwhile, another node will do. (Ray's soft node affinity
        # won't do: it keeps actors that reserve nothing, as most servers, from a node whose CPUs are taken.)
        options["fallback_strategy"] = [{"label_selector": dict(need.labels)}]
    return ray.remote(ACTORS[kind]).options(**options).remote()


class ActorPool:
    """Actors that outlive a fleet, for the next one: starting a process costs seconds."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, Seat, Any]] = []

    def take(self, kind: str, seat: Seat) -> Any:
        """An idle actor of a kind that reserves just this there, or a new one."""
        for idle in self._idle:
            if idle[0] == kind and idle[1].same(seat):
                self._idle.remove(idle)
                return idle[2]
        return start_actor(kind, seat)

    def put(self, kind: str, seat: Seat, handle: Any) -> None:
        """Keep an actor that nobody needs now."""
        self._idle.append((kind, seat, handle))

    def make_room(self) -> None:
        """Stop the idle actors that keep something from others."""
        self._stop([idle for idle in self._idle if idle[1].need.amounts])

    def close(self) -> None:
        """Stop all idle actors."""
        self._stop(list(self._idle))

    def _stop(self, actors: list[tuple[str, Seat, Any]]) -> None:
        for idle in actors:
            self._idle.remove(idle)
            ray.kill(idle[2])
