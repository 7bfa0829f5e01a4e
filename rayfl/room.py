"""Whether a fleet's actors could ever start on some machines. Asked before torch and Ray are imported, which
takes seconds, so it needs neither."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rayfl import allotment
from rayfl.errors import UserError
from rayfl.fleet_config import FleetConfig, labels_of
from rayfl.machines import Machine, Need, capacity


def client_need(config: FleetConfig) -> Need:
    """What each client actor reserves."""
    return _need(config.cpus_per_actor, config.gpus_per_actor, config.resources, config.labels)


def server_need(config: FleetConfig, gpus: float = 0.0) -> Need:
    """What each separate server actor reserves."""
    return _need(config.cpus_per_server, gpus, config.server_resources, config.server_labels)


def _need(cpus: float, gpus: float, resources: Mapping[str, float], labels: Sequence[str]) -> Need:
    amounts = {"CPU": cpus, "GPU": gpus, **resources}
    return Need({name: amount for name, amount in amounts.items() if amount > 0}, labels_of(labels))


def num_client_actors(config: FleetConfig, num_clients: int) -> int:
    """How many actors share the clients; 1 where the config leaves it open."""
    if config.clients_per_actor is not None:
        return math.ceil(num_clients / config.clients_per_actor)
    return min(config.client_actors or 1, num_clients)


def check_room(config: FleetConfig, num_clients: int, machines: Sequence[Machine]) -> None:
    """Refuse client actors that could never start, naming both numbers and what would fit."""
    share = config.gpus_per_actor
    if share > 1 and share != int(share):
        raise UserError(
            f"fleet.gpus_per_actor={share:g} is not possible, above 1 only whole GPUs are: "
            f"use {math.floor(share)} or {math.ceil(share)}"
        )
    need = client_need(config)
    actors, room = num_client_actors(config, num_clients), capacity(need, machines)
    if actors <= room:
        return
    remedy = "ask for less per actor or fleet.kind=local"
    if room and config.clients_per_actor is not None:
        remedy = f"set fleet.clients_per_actor={math.ceil(num_clients / room)}"
    elif room:
        remedy = f"set fleet.client_actors={room}"
    raise UserError(
        f"{actors} client actors with {need} each don't fit: there are {in_all(machines)}, "
        f"which is room for {room}; {remedy}"
    )


def check_marks(where: str, need: Need, machines: Sequence[Machine]) -> None:
    """Refuse labels and custom resources that no node has, naming what there is."""
    labelled = [machine for machine in machines if machine.has_labels(need)]
    if not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in need.labels.items())
        found = {f"{key}={value}" for m in machines for key, value in (m.labels or {}).items()}
        found = {text for text in found if not text.startswith("ray.io/node-id")}
        raise UserError(f"no node has {wanted}, which {where}labels asks for: there are {_some(found)}")
    for name, amount in need.amounts.items():
        if name in ("CPU", "GPU") or any(machine.labels is None for machine in labelled):
            continue
        most = max(machine.amounts.get(name, 0.0) for machine in labelled)
        if amount > most:
            known = {key for machine in labelled for key in machine.amounts} - _RAYS_OWN
            raise UserError(
                f"no node has {amount:g} {name}, which {where}resources asks for, the most is {most:g}: "
                f"there are {_some(key for key in known if not key.startswith('node:'))}"
            )


_RAYS_OWN = {"CPU", "GPU", "memory", "object_store_memory"}


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:20]) or "none at all"


def in_all(machines: Sequence[Machine]) -> str:
    """The sum of some machines, in words."""
    cpus, gpus = (sum(machine.amounts.get(kind, 0.0) for machine in machines) for kind in ("CPU", "GPU"))
    nodes = len({machine.node for machine in machines})
    return f"{cpus:g} CPU and {gpus:g} GPU" + (f" on {nodes} nodes" if nodes > 1 else "")


def each(machines: Sequence[Machine]) -> str:
    """Some machines in words, equal ones together."""
    alike = Counter(in_all([machine]) for machine in machines)
    return ", ".join(f"{count} node{'s' * (count > 1)} with {what}" for what, count in alike.items())


def at_most_here() -> Machine | None:
    """An upper bound of what Ray would find on this machine. None where only torch can count the GPUs."""
    if not sys.platform.startswith("linux") or Path("/dev/kfd").exists() or Path("/dev/dxg").exists():
        return None
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = min(gpus, len([card for card in visible.split(",") if card.strip() not in ("", "-1")]))
    return Machine({"CPU": float(allotment.num_cpus()), "GPU": float(gpus)}, labels=None)
