"""Which host each party lives on: a pure function of the config, the same wherever it is computed."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rayfl import tree
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.topology import Topology


@dataclass(frozen=True)
class HostPlan:
    """What kind of actor a host is."""

    kind: Literal["client", "edge", "main", "fed"]


@dataclass(frozen=True)
class Layout:
    """The hosts, their members, and the topology that routing follows."""

    hosts: tuple[HostPlan, ...]
    home: dict[tuple[str, int], int]
    """(role, id) -> host."""
    topology: Topology

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)

    @cached_property
    def _ids(self) -> dict[str, tuple[int, ...]]:
        ids: dict[str, list[int]] = defaultdict(list)
        for role, index in self.home:
            ids[role].append(index)
        return {role: tuple(sorted(indices)) for role, indices in ids.items()}

    def ids(self, role: str) -> tuple[int, ...]:
        """All ids of a role, ascending."""
        return self._ids.get(role, ())

    def members(self, host: int) -> list[tuple[str, int]]:
        """The parties of one host."""
        return [party for party, place in self.home.items() if place == host]

    def by_host(self, role: str, ids: Iterable[int]) -> list[tuple[int, tuple[int, ...]]]:
        """The hosts of some parties, each with its own, in ascending order."""
        found: dict[int, list[int]] = defaultdict(list)
        for index in ids:
            found[self.home[role, index]].append(index)
        return [(host, tuple(members)) for host, members in sorted(found.items())]


def local_layout(blueprint: Blueprint) -> Layout:
    """Everybody on one host."""
    return plan_layout(blueprint, FleetConfig(client_actors=1, placement="colocated"))


def plan_layout(blueprint: Blueprint, config: FleetConfig) -> Layout:
    """Spread the parties over hosts: clients in whole contiguous blocks of the summation tree."""
    facts, cast = blueprint.facts, blueprint.algorithm.cast()
    client_host = spread_clients(facts.num_clients, config)
    num_client_hosts = max(client_host) + 1
    hosts = [HostPlan("client")] * num_client_hosts
    home = {("client", i): host for i, host in enumerate(client_host)}
    separate = config.placement == "separate"

    def place(role: Literal["edge", "main", "fed"], index: int, colocated_with: int) -> None:
        home[role, index] = colocated_with
        if separate:
            home[role, index] = len(hosts)
            hosts.append(HostPlan(role))

    shard_of = [0] * facts.num_clients
    if "main" in cast:
        if getattr(cast["main"], "scope", "joint") == "per_client":
            num_shards = (
                min(config.main_shards or num_client_hosts, num_client_hosts)
                if separate
                else num_client_hosts
            )
            shard_of = [host * num_shards // num_client_hosts for host in client_host]
        for shard in range(max(shard_of) + 1):
            place("main", shard, shard)
    if "edge" in cast:
        for edge in range(facts.num_edges):
            first = next((i for i, e in enumerate(facts.client_edges) if e == edge), 0)
            place("edge", edge, client_host[first])
    if "fed" in cast:
        place("fed", 0, 0)
    for piece in range(tree.NUM_BLOCKS):
        home["evaluator", piece] = piece * num_client_hosts // tree.NUM_BLOCKS
    return Layout(tuple(hosts), home, Topology(facts.client_edges, tuple(shard_of)))


def spread_clients(num_clients: int, config: FleetConfig) -> Sequence[int]:
    """The client actor of each client."""
    if config.clients_per_actor is not None:
        return [i // config.clients_per_actor for i in range(num_clients)]
    actors = min(config.client_actors or 1, num_clients)
    blocks = [tree.block_of(i, num_clients) for i in range(num_clients)]
    used = {block: rank for rank, block in enumerate(sorted(set(blocks)))}
    if actors <= len(used):
        return [used[block] * actors // len(used) for block in blocks]
    return [i * actors // num_clients for i in range(num_clients)]
