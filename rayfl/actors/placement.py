"""What there is to put actors on, and what a cell of a sweep reserves of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group_table,
)

from rayfl import algorithms, allotment
from rayfl.actors.client import ClientActor
from rayfl.actors.edge_server import EdgeServerActor
from rayfl.actors.fed_server import FedServerActor
from rayfl.actors.main_server import MainServerActor
from rayfl.actors.shell import ShellActor
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.fleet_config import FleetConfig
from rayfl.layout import spread_clients
from rayfl.machines import Machine, Need, Room, capacity, fill
from rayfl.room import check_marks, client_need, each

ACTORS: dict[str, type[ShellActor]] = {
    "client": ClientActor,
    "edge": EdgeServerActor,
    "main": MainServerActor,
    "fed": FedServerActor,
}


def this_machine() -> Machine:
    """What Ray would find here, if it started now."""
    found = {"CPU": float(allotment.num_cpus()), "GPU": float(torch.cuda.device_count())}
    return Machine(found, labels=None)


def nodes() -> list[Machine]:
    """Where actors may go: the nodes, this process's own first; inside a placement group, its bundles."""
    here = ray.get_runtime_context().get_node_id()
    alive = {
        node["NodeID"]: Machine(node["Resources"], node["Labels"], node["NodeID"])
        for node in sorted(ray.nodes(), key=lambda node: node["NodeID"] != here)
        if node["Alive"]
    }
    group: PlacementGroup | None = get_current_placement_group()
    if group is None:
        return list(alive.values())
    node_of = placement_group_table(group)["bundles_to_node_id"]
    places = [
        Machine(amounts, alive[node_of[i]].labels if node_of[i] in alive else None, node_of[i], bundle=i)
        for i, amounts in enumerate(group.bundle_specs)
    ]
    return sorted(places, key=lambda place: place.node != here)


def choose_actors(config: FleetConfig, num_clients: int, machines: Sequence[Machine]) -> FleetConfig:
    """Fill in the number of client actors: as many as fit, at most one per client."""
    if config.clients_per_actor is not None or config.client_actors is not None:
        return config
    room = capacity(client_need(config), machines)
    return replace(config, client_actors=max(1, min(room, num_clients)))


def bundles(config: ExperimentConfig, machines: Sequence[Machine]) -> list[Need]:
    """What a trial reserves: itself, and, with a Ray fleet, one bundle per actor that asks for something."""
    fleet = config.fleet
    on_gpu = config.train.device.startswith("cuda")
    if fleet.kind == "local":
        gpus = {"GPU": fleet.gpus_per_actor or 1.0} if on_gpu else {}
        amounts = {**fleet.resources, "CPU": float(config.train.threads), **gpus}
        return [Need(amounts, client_need(fleet).labels)]
    fleet = choose_actors(fleet, config.data.num_clients, machines)
    clients = max(spread_clients(config.data.num_clients, fleet)) + 1
    kinds = ["client"] * clients
    if fleet.placement == "separate":
        cast = algorithms.find(config.algorithm.name).cast()
        if "main" in cast:
            per_client = getattr(cast["main"], "scope", "joint") == "per_client"
            kinds += ["main"] * (min(fleet.main_shards or clients, clients) if per_client else 1)
        kinds += ["edge"] * config.data.num_edges * ("edge" in cast) + ["fed"] * ("fed" in cast)
    needs = [ACTORS[kind].resources(fleet) for kind in kinds]
    needs = [Need(need.amounts or _ALMOST_NOTHING, need.labels) for need in needs if need != Need()]
    # The trial's own process needs no CPU, and Tune takes an empty first bundle for just that.
    return [Need(), *needs] if needs else [Need(_ALMOST_NOTHING)]


_ALMOST_NOTHING = {"CPU": 0.001}
"""A bundle can't be empty."""


def reservation(needs: Sequence[Need]) -> dict[str, Any]:
    """A trial's bundles as the arguments of a placement group, its clients on as many nodes as there are."""
    return {
        "bundles": [dict(need.amounts) for need in needs],
        "strategy": "SPREAD",
        "bundle_label_selector": [dict(need.labels) for need in needs if need.amounts],
    }


def check_fits(label: str, needs: Sequence[Need], machines: Sequence[Machine]) -> None:
    """Refuse a trial that could never start, with both numbers."""
    for need in needs:
        check_marks("fleet.(server_)", need, machines)
    for kind in ("CPU", "GPU"):
        wants = sum(need.amounts.get(kind, 0.0) for need in needs)
        has = sum(machine.amounts.get(kind, 0.0) for machine in machines)
        most = max((machine.amounts.get(kind, 0.0) for machine in machines), default=0.0)
        largest = max((need.amounts.get(kind, 0.0) for need in needs), default=0.0)
        if wants > has + 1e-9 or largest > most + 1e-9:
            raise UserError(
                f"the cell '{label}' asks for {wants:g} {kind}, the cluster has {has:g} (at most "
                f"{most:g} on one machine): lower fleet.client_actors, "
                f"fleet.{kind.lower()}s_per_actor or train.threads"
            )
    over = fill(needs, [Room(machine) for machine in machines])
    if over is not None:
        raise UserError(
            f"the cell '{label}' does not fit: beside its other actors no node has room for one with {over}: "
            f"there are {each(machines)}; lower fleet.client_actors or what an actor asks for"
        )


def at_once(cells: Sequence[Sequence[Need]], machines: Sequence[Machine]) -> int:
    """How many of the cells, in order, the cluster takes at the same time."""
    rooms = [Room(machine) for machine in machines]
    count = 0
    for needs in cells:
        if fill(needs, rooms) is not None:
            break
        count += 1
    return max(count, 1)
