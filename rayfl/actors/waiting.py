"""Waiting for room and for actors, no longer than ``fleet.start_timeout_s``, and what to say after that."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from rayfl.actors.lifeline import Lifeline
from rayfl.actors.placement import nodes
from rayfl.actors.plan import Plan, plan_fleet
from rayfl.errors import PartyLost, RunFailed, UserError
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint

_EVERY_S = 1.0


def wait_for_room(blueprint: Blueprint, config: FleetConfig, wait_s: float) -> Plan:
    """A plan for the nodes there are. A fleet too large for them waits for those that went away, or is
    refused at once where none did."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return plan_fleet(blueprint, config, nodes())
        except UserError as error:
            if not wait_s:
                raise
            if time.monotonic() >= until:
                raise RunFailed(
                    f"no node came back within {wait_s:g} s and the others have no room: "
                    f"{error}. To go on with this same experiment, bring the node back and use --resume"
                ) from None
        time.sleep(_EVERY_S)


def wait_until_ready(ready: Sequence[Any], plan: Plan, timeout_s: float, lifeline: Lifeline) -> None:
    """Wait for what actors answer first."""
    until = time.monotonic() + timeout_s
    late = list(ready)
    while late:
        left = until - time.monotonic()
        if left <= 0:
            raise RunFailed(_too_late([ready.index(answer) for answer in late], plan, timeout_s))
        lifeline.check()
        _, late = ray.wait(late, num_returns=len(late), timeout=min(left, _EVERY_S))
        if late and not still_there(plan):
            raise PartyLost("a node went away while actors started on it")


def still_there(plan: Plan) -> bool:
    """Whether Ray believes all its nodes alive."""
    return {machine.node for machine in plan.machines} <= {machine.node for machine in nodes()}


def _too_late(hosts: Sequence[int], plan: Plan, timeout_s: float) -> str:
    kinds = Counter(f"{plan.layout.hosts[host].kind} actors with {plan.needs[host]}" for host in hosts)
    who = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    free = ray.available_resources()
    return (
        f"{len(hosts)} of {len(plan.needs)} actors did not start within {timeout_s:g} s: {who}. Free are "
        f"{free.get('CPU', 0.0):g} CPU and {free.get('GPU', 0.0):g} GPU: others have the rest, or memory is "
        f"short; raise fleet.start_timeout_s or lower fleet.client_actors, and go on with --resume"
    )
