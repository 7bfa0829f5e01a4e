"""Which machine each actor of a fleet gets: clients are spread, a server sits near the clients it serves.

Planned before anything starts, from what machines have, so that it can be tried on made-up ones.
"""

from collections import Counter
from collections.abc import Sequence

from rayfl.layout import Layout
from rayfl.machines import Machine, Need, Room


class NoRoom(Exception):
    """No machine has what one of the actors needs beside the others."""

    def __init__(self, host: int) -> None:
        super().__init__(host)
        self.host = host


def assign(layout: Layout, needs: Sequence[Need], machines: Sequence[Machine]) -> list[Machine]:
    """The machine of each host of a layout; where it can't matter, earlier machines are taken.

    Raises NoRoom, with the first host that finds none.
    """
    try:
        return _Plan(layout, needs, machines).made(servers_first=False)
    except NoRoom as first:
        try:
            # Clients can go anywhere, a server may need just what they took.
            return _Plan(layout, needs, machines).made(servers_first=True)
        except NoRoom:
            raise first from None


class _Plan:
    def __init__(self, layout: Layout, needs: Sequence[Need], machines: Sequence[Machine]) -> None:
        self._layout, self._needs = layout, needs
        self._rooms = [Room(machine) for machine in machines]
        self._place: dict[int, Machine] = {}

    def made(self, servers_first: bool) -> list[Machine]:
        hosts = range(self._layout.num_hosts)
        clients = [host for host in hosts if self._layout.hosts[host].kind == "client"]
        servers = [host for host in hosts if host not in clients]
        if servers_first:
            self._put_servers(servers)
        self._put_clients(clients)
        if not servers_first:
            self._put_servers(servers)
        return [self._place[host] for host in hosts]

    def _put(self, host: int, room: Room) -> None:
        room.take(self._needs[host])
        self._place[host] = room.machine

    def _put_clients(self, hosts: Sequence[int]) -> None:
        """In proportion to what nodes have room for, neighbours together: an edge server's clients are."""
        need = self._needs[hosts[0]]
        rooms: dict[str, list[Room]] = {}
        for room in self._rooms:
            rooms.setdefault(room.machine.node, []).append(room)
        fits = {node: sum(room.times(need) for room in mine) for node, mine in rooms.items()}
        shares = Counter(dict.fromkeys(rooms, 0))
        for host in hosts:
            open_nodes = [node for node in rooms if shares[node] < fits[node]]
            if not open_nodes:
                raise NoRoom(host)
            shares[min(open_nodes, key=lambda node: (shares[node] + 1) / fits[node])] += 1
        remaining = iter(hosts)
        for node, share in shares.items():
            for _ in range(share):
                # In a trial's reservation a client leaves the larger pieces, which servers need, alone.
                open_rooms = [room for room in rooms[node] if room.times(need)]
                self._put(next(remaining), min(open_rooms, key=lambda room: room.times(need)))

    def _put_servers(self, hosts: Sequence[int]) -> None:
        for host in hosts:
            rooms = [room for room in self._rooms if room.times(self._needs[host])]
            if not rooms:
                raise NoRoom(host)
            near = Counter(self._place[client].node for client in self._served(host) if client in self._place)
            self._put(host, max(rooms, key=lambda room: near[room.machine.node]))

    def _served(self, host: int) -> list[int]:
        """The host of each client that a server's parties serve."""
        topology = self._layout.topology
        served = []
        for role, index in self._layout.members(host):
            by_client = {"main": topology.shard_of, "edge": topology.edge_of}.get(role)
            for client in self._layout.ids("client"):
                if by_client is None or by_client[client] == index:
                    served.append(self._layout.home["client", client])
        return served
