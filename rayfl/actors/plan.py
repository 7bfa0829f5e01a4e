"""A fleet as it will be started: its hosts, what each reserves and where, or why that can't be."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rayfl.actors.assign import NoRoom, assign
from rayfl.actors.placement import ACTORS, choose_actors
from rayfl.errors import UserError
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.layout import Layout, plan_layout
from rayfl.machines import Machine, Need
from rayfl.room import check_marks, check_room, each


def requests(layout: Layout, config: FleetConfig) -> list[Need]:
    """What each host of a layout reserves, in order."""
    return [ACTORS[host.kind].resources(config) for host in layout.hosts]


@dataclass(frozen=True)
class Plan:
    """A fleet as it will be started."""

    layout: Layout
    needs: Sequence[Need]
    """What each host reserves."""
    machines: Sequence[Machine]
    """And where."""


def plan_fleet(blueprint: Blueprint, config: FleetConfig, machines: Sequence[Machine]) -> Plan:
    """Hosts and their machines. UserError for what could never start."""
    config = choose_actors(config, blueprint.facts.num_clients, machines)
    layout = plan_layout(blueprint, config)
    return Plan(layout, requests(layout, config), preflight(layout, config, machines))


def preflight(layout: Layout, config: FleetConfig, machines: Sequence[Machine]) -> list[Machine]:
    """The machine of each host. UserError for what could never start, with both numbers and a remedy."""
    needs = requests(layout, config)
    actors = sum(host.kind == "client" for host in layout.hosts)
    check_marks("fleet.", needs[0], machines)
    check_room(config, len(layout.ids("client")), machines)
    for need in needs[actors:]:
        check_marks("fleet.server_", need, machines)
    for kind in ("CPU", "GPU"):
        want = sum(need.amounts.get(kind, 0.0) for need in needs)
        have = sum(machine.amounts.get(kind, 0.0) for machine in machines)
        if want > have + 1e-9:
            raise UserError(
                f"the fleet asks for {want:g} {kind} in all, there are {have:g}: lower "
                f"fleet.client_actors={actors} or fleet.{kind.lower()}s_per_server"
            )
    try:
        return assign(layout, needs, machines)
    except NoRoom as error:
        raise UserError(
            f"beside {actors} client actors with {needs[0]} no node has room for the "
            f"{layout.hosts[error.host].kind} server with {needs[error.host]}: there are {each(machines)}; "
            f"lower fleet.client_actors={actors} or what servers ask for"
        ) from error


def whereabouts(plan: Plan) -> str:
    """How a fleet lies on several nodes, in a line; nothing where there is only one."""
    if len({machine.node for machine in plan.machines}) < 2:
        return ""
    kinds = [host.kind == "client" for host in plan.layout.hosts]
    on = Counter(machine.node for machine, client in zip(plan.machines, kinds, strict=True) if client)
    servers = {m.node for m, client in zip(plan.machines, kinds, strict=True) if not client}
    line = f"{sum(kinds)} client actors on {len(on)} nodes ({' + '.join(map(str, on.values()))})"
    return line + (f", {kinds.count(False)} server actors on {len(servers)}" if servers else "")
