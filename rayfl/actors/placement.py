"""What a fleet asks of a cluster, held against what the cluster has, before anything starts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group

from rayfl.actors.client import ClientActor
from rayfl.actors.edge_server import EdgeServerActor
from rayfl.actors.fed_server import FedServerActor
from rayfl.actors.main_server import MainServerActor
from rayfl.actors.shell import ShellActor
from rayfl.errors import UserError
from rayfl.layout import FleetConfig, Layout

ACTORS: dict[str, type[ShellActor]] = {
    "client": ClientActor,
    "edge": EdgeServerActor,
    "main": MainServerActor,
    "fed": FedServerActor,
}


def requests(layout: Layout, config: FleetConfig) -> list[dict[str, float]]:
    """What each host of a layout reserves, in order."""
    return [ACTORS[host.kind].resources(config) for host in layout.hosts]


def nodes() -> list[dict[str, float]]:
    """CPU and GPU of each machine that actors may use; inside a placement group, its bundles."""
    group: PlacementGroup | None = get_current_placement_group()
    if group is not None:
        return [dict(bundle) for bundle in group.bundle_specs]
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def choose_actors(config: FleetConfig, num_clients: int, machines: Sequence[dict[str, float]]) -> FleetConfig:
    """Fill in the number of client actors: as many as fit, at most one per client."""
    if config.clients_per_actor is not None or config.client_actors is not None:
        return config
    return replace(config, client_actors=max(1, min(capacity(config, machines), num_clients)))


def capacity(config: FleetConfig, machines: Sequence[dict[str, float]]) -> int:
    """Client actors that fit on some machines at once."""
    total = 0
    for machine in machines:
        fits = []
        if config.cpus_per_actor > 0:
            fits.append(math.floor(machine.get("CPU", 0) / config.cpus_per_actor + 1e-9))
        if config.gpus_per_actor > 0:
            fits.append(_gpu_actors(machine.get("GPU", 0), config.gpus_per_actor))
        total += min(fits, default=1 << 20)
    return total


def _gpu_actors(gpus: float, share: float) -> int:
    """Actors with a share of a GPU must each find it on one card: 0.6 + 0.6 does not fit."""
    if share >= 1:
        return math.floor(gpus / share)
    return math.floor(gpus) * math.floor(1 / share + 1e-9)


def preflight(layout: Layout, config: FleetConfig, machines: Sequence[dict[str, float]]) -> None:
    """Refuse what could never start, naming both numbers and what would fit."""
    share = config.gpus_per_actor
    if share > 1 and share != int(share):
        raise UserError(
            f"fleet.gpus_per_actor={share:g} is not possible, above 1 only whole GPUs are: "
            f"use {math.floor(share)} or {math.ceil(share)}"
        )
    actors = sum(host.kind == "client" for host in layout.hosts)
    room = capacity(config, machines)
    have = {kind: sum(machine.get(kind, 0.0) for machine in machines) for kind in ("CPU", "GPU")}
    needs = requests(layout, config)
    want = {"CPU": sum(need["num_cpus"] for need in needs), "GPU": sum(need["num_gpus"] for need in needs)}
    if actors > room:
        remedy = f"set fleet.client_actors={room}" if room else "ask for less per actor or fleet.kind=local"
        raise UserError(
            f"{actors} client actors with {config.cpus_per_actor:g} CPU and {share:g} GPU each don't fit: "
            f"there are {have['CPU']:g} CPU and {have['GPU']:g} GPU, which is room for {room}; {remedy}"
        )
    for kind in ("CPU", "GPU"):
        if want[kind] > have[kind] + 1e-9:
            raise UserError(
                f"the fleet asks for {want[kind]:g} {kind} in all, there are {have[kind]:g}: lower "
                f"fleet.client_actors={actors} or fleet.{kind.lower()}s_per_server"
            )
