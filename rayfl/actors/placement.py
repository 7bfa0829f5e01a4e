"""What a fleet or a cell of a sweep asks of a cluster, held against what there is, before anything starts."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import ray
import torch
from ray.util.placement_group import PlacementGroup, get_current_placement_group

from rayfl import algorithms
from rayfl.actors.client import ClientActor
from rayfl.actors.edge_server import EdgeServerActor
from rayfl.actors.fed_server import FedServerActor
from rayfl.actors.main_server import MainServerActor
from rayfl.actors.shell import ShellActor
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.layout import FleetConfig, Layout, spread_clients

Machine = Mapping[str, float]
"""CPU and GPU that there are."""
ACTORS: dict[str, type[ShellActor]] = {
    "client": ClientActor,
    "edge": EdgeServerActor,
    "main": MainServerActor,
    "fed": FedServerActor,
}


def requests(layout: Layout, config: FleetConfig) -> list[dict[str, float]]:
    """What each host of a layout reserves, in order."""
    return [ACTORS[host.kind].resources(config) for host in layout.hosts]


def this_machine() -> dict[str, float]:
    """What Ray would find here, if it started now."""
    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}


def nodes() -> list[dict[str, float]]:
    """CPU and GPU of each machine that actors may use; inside a placement group, its bundles."""
    group: PlacementGroup | None = get_current_placement_group()
    if group is not None:
        return [dict(bundle) for bundle in group.bundle_specs]
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def choose_actors(config: FleetConfig, num_clients: int, machines: Sequence[Machine]) -> FleetConfig:
    """Fill in the number of client actors: as many as fit, at most one per client."""
    if config.clients_per_actor is not None or config.client_actors is not None:
        return config
    return replace(config, client_actors=max(1, min(capacity(config, machines), num_clients)))


def capacity(config: FleetConfig, machines: Sequence[Machine]) -> int:
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


def preflight(layout: Layout, config: FleetConfig, machines: Sequence[Machine]) -> None:
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
        remedy = "ask for less per actor or fleet.kind=local"
        if room and config.clients_per_actor is not None:
            remedy = f"set fleet.clients_per_actor={math.ceil(len(layout.ids('client')) / room)}"
        elif room:
            remedy = f"set fleet.client_actors={room}"
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


def bundles(config: ExperimentConfig, machines: Sequence[Machine]) -> list[dict[str, float]]:
    """What a trial reserves: itself, and, with a Ray fleet, one bundle per actor that asks for something."""
    fleet = config.fleet
    on_gpu = config.train.device.startswith("cuda")
    if fleet.kind == "local":
        gpus = (fleet.gpus_per_actor or 1.0) if on_gpu else 0.0
        return [_bundle(float(config.train.threads), gpus)]
    fleet = choose_actors(fleet, config.data.num_clients, machines)
    clients = max(spread_clients(config.data.num_clients, fleet)) + 1
    needs = [_bundle(fleet.cpus_per_actor, fleet.gpus_per_actor)] * clients
    if fleet.placement == "separate":
        cast = algorithms.find(config.algorithm.name).cast()
        servers = config.data.num_edges * ("edge" in cast) + ("fed" in cast)
        if "main" in cast:
            per_client = getattr(cast["main"], "scope", "joint") == "per_client"
            servers += min(fleet.main_shards or clients, clients) if per_client else 1
        needs += [_bundle(fleet.cpus_per_server, fleet.gpus_per_server)] * servers
    needs = [need for need in needs if need]
    # The trial's own process needs no CPU, and Tune takes an empty first bundle for just that.
    return [{}, *needs] if needs else [{"CPU": 0.001}]


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}


def check_fits(label: str, need: Sequence[Mapping[str, float]], machines: Sequence[Machine]) -> None:
    """Refuse a trial that could never start, with both numbers."""
    for kind in ("CPU", "GPU"):
        wants = sum(bundle.get(kind, 0.0) for bundle in need)
        has = sum(machine.get(kind, 0.0) for machine in machines)
        most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
        largest = max((bundle.get(kind, 0.0) for bundle in need), default=0.0)
        if wants > has + 1e-9 or largest > most + 1e-9:
            raise UserError(
                f"the cell '{label}' asks for {wants:g} {kind}, the cluster has {has:g} (at most "
                f"{most:g} on one machine): lower fleet.client_actors, "
                f"fleet.{kind.lower()}s_per_actor or train.threads"
            )


def at_once(needs: Sequence[Sequence[Mapping[str, float]]], machines: Sequence[Machine]) -> int:
    """How many of the cells, in order, the cluster takes at the same time."""
    free = {kind: sum(machine.get(kind, 0.0) for machine in machines) for kind in ("CPU", "GPU")}
    count = 0
    for need in needs:
        for kind in free:
            free[kind] -= sum(bundle.get(kind, 0.0) for bundle in need)
        if min(free.values()) < -1e-9:
            break
        count += 1
    return max(count, 1)
