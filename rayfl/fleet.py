"""Where parties live, and how calls and results travel between them.

A method writes ``clients.forward()`` and passes the parcel on; the fleet sends one message to each host that
has members, and moves exactly the entries that another host needs. The driver opens none on its way.
"""

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rayfl.errors import RunFailed
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.layout import Layout, local_layout
from rayfl.ledger import Ledger
from rayfl.shell import Argument, Request, Settled, Shell


@dataclass(frozen=True)
class Piece:
    """The part of a parcel that one host keeps under a ticket."""

    host: int
    ticket: int
    keys: dict[int, int] | None
    """key -> key it was made under; None where only the host knows the keys."""


class Parcel:
    """The result of a call, id -> value: it may be passed on, not opened."""

    def __init__(
        self,
        fleet: "Fleet",
        sender: str,
        axis: str | None,
        pieces: Sequence[Piece] = (),
        given: Mapping[int, Any] | None = None,
        origin: "Parcel | None" = None,
    ) -> None:
        self._fleet, self._sender, self._axis = fleet, sender, axis
        self._pieces, self._given, self._origin = tuple(pieces), given, origin

    def passed_on(self, source_of: Mapping[int, int]) -> "Parcel":
        """The same values under other ids: receiver -> the id whose value it gets."""
        pieces = []
        for piece in self._pieces:
            assert piece.keys is not None, "a pooled parcel can't be passed on"
            keys = {to: piece.keys[source] for to, source in source_of.items() if source in piece.keys}
            if keys:
                pieces.append(Piece(piece.host, piece.ticket, keys))
        return Parcel(self._fleet, self._sender, self._axis, pieces, origin=self)

    def __repr__(self) -> str:
        return f"<parcel from {self._sender}, by {self._axis or 'nobody'}>"

    def __del__(self) -> None:
        if self._origin is None:
            self._fleet._release(self._pieces)


class Group:
    """A handle on parties of one role: a method call on it is a call on each member."""

    def __init__(self, fleet: "Fleet", role: str, ids: Sequence[int], pool: bool = False) -> None:
        self._fleet, self._role, self._pool = fleet, role, pool
        self.ids: tuple[int, ...] = tuple(ids)

    def only(self, ids: Iterable[int]) -> "Group":
        """The members among ``ids``."""
        chosen = set(ids)
        return Group(self._fleet, self._role, [i for i in self.ids if i in chosen], self._pool)

    @property
    def pooled(self) -> "Group":
        """Ask each host to add up its members' updates before sending. Changes no bit of an average."""
        return Group(self._fleet, self._role, self.ids, pool=True)

    @property
    def root(self) -> "Group":
        """The first member alone; its results belong to nobody in particular."""
        return Group(self._fleet, self._role, self.ids[:1])

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator["Group"]:
        """The members one by one, for methods whose clients take turns."""
        return (Group(self._fleet, self._role, [i]) for i in self.ids)

    def __getattr__(self, method: str) -> Callable[..., Parcel]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments: self._fleet._call(self, method, arguments)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._role}s>"


class Transport(Protocol):
    """The way to one host."""

    def call(self, request: Request, leaves: Sequence[Any]) -> None:
        """Send a call; don't wait."""

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> Any:
        """A reference to kept results, which another host's call resolves."""

    def settle(self, free: Sequence[int]) -> Any:
        """A reference to the host's report on the round."""


class Fleet:
    """Routes calls to hosts. Subclasses say what a host is."""

    whereabouts = ""
    """How the parties lie on several nodes, in a line; nothing where they don't."""

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        self.blueprint, self.layout = blueprint, layout
        self.ledger = Ledger()
        self.failed_clients: dict[int, str] = {}
        """Who was left out of the last round, and why."""
        self.not_finite: dict[int, str] = {}
        """Who sent a NaN or an infinity in the last round, and where."""
        self._cast = blueprint.algorithm.cast()
        self._tickets = itertools.count()
        self._t, self._phase = 0, "train"
        self._free: list[list[int]] = [[] for _ in range(layout.num_hosts)]
        self._hosts: list[Transport] = []

    def group(self, role: str) -> Group:
        """All parties of a role."""
        return Group(self, role, self.layout.ids(role))

    def scatter(self, values: Mapping[int, Any]) -> Parcel:
        """A parcel of the driver's own values, by client."""
        return Parcel(self, "driver", "client", given=values)

    def gather(self, parcel: Parcel) -> Any:
        """Open a parcel: a mapping by id, or the value itself where there is one party."""
        leaves = [self._hosts[p.host].export(p.ticket, p.keys) for p in parcel._pieces]
        values = dict(parcel._given or {})
        for leaf in self._resolve(leaves):
            values.update(leaf)
        return values[0] if parcel._axis is None else dict(sorted(values.items()))

    def begin_round(self, t: int) -> None:
        """Calls from here on belong to round ``t``."""
        self._t = t

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter the traffic of some calls under another phase than training."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def settle(self) -> None:
        """Wait for the round's calls; raise the first failure; take in what the hosts counted."""
        free, self._free = self._free, [[] for _ in self._hosts]
        waiting = [host.settle(tickets) for host, tickets in zip(self._hosts, free, strict=True)]
        self.failed_clients, self.not_finite = {}, {}
        failures = []
        for report in self._resolve(waiting):
            assert isinstance(report, Settled)
            self.ledger.add(report.traffic)
            self.failed_clients.update(report.failed_clients)
            self.not_finite.update(report.not_finite)
            if report.failure is not None:
                failures.append(report.failure)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Let go of processes and modules."""
        self._hosts = []

    def relaunched(self) -> "Fleet":
        """A fleet in place of this one, with all parties as they were before round 1."""
        raise NotImplementedError

    def _resolve(self, leaves: Sequence[Any]) -> list[Any]:
        return list(leaves)

    def _release(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._free[piece.host].append(piece.ticket)

    def _call(self, group: Group, method: str, arguments: tuple[Any, ...]) -> Parcel:
        role, pool = group._role, group._pool
        function = getattr(self._cast.get(role, object), method, None)
        per_client = bool(getattr(function, "per_client", False))
        ids = group.ids
        clients: set[int] = set()
        if per_client:
            clients = {key for item in arguments if isinstance(item, Parcel) for key in self._keys(item)}
            ids = tuple(sorted({self._server_of(role, client) for client in clients} & set(ids)))
        alone = role in ("fed", "main") and not per_client and not pool and len(ids) == 1
        # All exports are asked for before any call: behind a call they would wait for it to end.
        calls = [
            (host, members, *self._request(host, role, members, method, arguments, per_client, pool))
            for host, members in self.layout.by_host(role, ids)
        ]
        pieces = []
        for host, members, request, leaves in calls:
            self._hosts[host].call(request, leaves)
            keys: dict[int, int] | None
            if pool:
                keys = None
            elif per_client:
                mine = [i for i in clients if self._server_of(role, i) in members]
                keys = {i: i for i in sorted(mine)}
            elif alone:
                keys = {0: members[0]}
            else:
                keys = {i: i for i in members}
            pieces.append(Piece(host, request.ticket, keys))
        axis = None if alone else "client" if per_client or pool else role
        return Parcel(self, role, axis, pieces)

    def _server_of(self, role: str, client: int) -> int:
        topology = self.layout.topology
        return topology.edge_of[client] if role == "edge" else topology.shard_of[client]

    def _keys(self, parcel: Parcel) -> Iterator[int]:
        if parcel._axis == "client":
            yield from parcel._given or ()
            for piece in parcel._pieces:
                assert piece.keys is not None, "a pooled parcel goes to a server that averages"
                yield from piece.keys

    def _request(
        self,
        host: int,
        role: str,
        members: tuple[int, ...],
        method: str,
        arguments: tuple[Any, ...],
        per_client: bool,
        pool: bool,
    ) -> tuple[Request, list[Any]]:
        leaves: list[Any] = []
        routed: list[Any] = []
        for item in arguments:
            if not isinstance(item, Parcel):
                routed.append(item)
                continue
            wanted = self._wanted(role, members, item._axis, per_client)
            here, positions = [], []
            for piece in item._pieces:
                keys = piece.keys
                if wanted is not None and keys is not None and not wanted.issuperset(keys):
                    keys = {key: source for key, source in keys.items() if key in wanted}
                    if not keys:
                        continue
                if piece.host == host:
                    here.append((piece.ticket, keys))
                else:
                    positions.append(len(leaves))
                    leaves.append(self._hosts[piece.host].export(piece.ticket, keys))
            given = item._given
            if given is not None and wanted is not None:
                given = {key: value for key, value in given.items() if key in wanted}
            routed.append(Argument(item._sender, item._axis, tuple(here), tuple(positions), given))
        free, self._free[host] = self._free[host], []
        request = Request(
            next(self._tickets),
            role,
            members,
            method,
            tuple(routed),
            self._t,
            self._phase,
            per_client,
            pool,
            tuple(free),
        )
        return request, leaves

    def _wanted(
        self, role: str, members: tuple[int, ...], axis: str | None, per_client: bool
    ) -> set[int] | None:
        """The keys of a parcel that some members get; None for all."""
        if axis is None:
            return None
        if role == axis:
            return set(members)
        wanted: set[int] = set()
        for index in members:
            keys = self.layout.topology.wanted(role, index, axis, per_client)
            if keys is None:
                return None
            wanted.update(keys)
        return wanted


class _InProcess:
    """A host in this process. Sealed: what leaves it is serialised, as between machines."""

    def __init__(self, shell: Shell, sealed: bool) -> None:
        self._shell, self._sealed = shell, sealed

    def call(self, request: Request, leaves: Sequence[Any]) -> None:
        if not self._sealed:
            self._shell.call(request, leaves)
            return
        received = [pickle.loads(leaf) for leaf in leaves]
        versions = [(tensor, tensor._version) for leaf in received for tensor in _tensors(leaf)]
        self._shell.call(pickle.loads(pickle.dumps(request)), received)
        if any(tensor._version != version for tensor, version in versions):
            raise RunFailed(f"{request.role}.{request.method} wrote to a message it received: clone it first")

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> Any:
        values = self._shell.export(ticket, keys)
        return pickle.dumps(values) if self._sealed else values

    def settle(self, free: Sequence[int]) -> Settled:
        return self._shell.settle(free)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))


class LocalFleet(Fleet):
    """Everybody in this process, without Ray: breakpoints work."""

    def __init__(self, blueprint: Blueprint, config: FleetConfig | None = None) -> None:
        layout = local_layout(blueprint)
        super().__init__(blueprint, layout)
        self._config = config
        self._threads_before = torch.get_num_threads()
        shell = Shell(blueprint, layout.members(0), layout.topology, config)
        self._hosts = [_InProcess(shell, sealed=False)]

    def close(self) -> None:
        super().close()
        torch.set_num_threads(self._threads_before)

    def relaunched(self) -> "LocalFleet":
        self.close()
        return LocalFleet(self.blueprint, self._config)


class SealedFleet(Fleet):
    """Several hosts in this process with Ray's manners: every message between them is a serialised copy,
    and writing to one is an error. For tests."""

    def __init__(self, blueprint: Blueprint, layout: Layout, config: FleetConfig | None = None) -> None:
        super().__init__(blueprint, layout)
        self._config = config
        self._hosts = [
            _InProcess(Shell(blueprint, layout.members(host), layout.topology, config), sealed=True)
            for host in range(layout.num_hosts)
        ]

    def relaunched(self) -> "SealedFleet":
        self.close()
        return SealedFleet(self.blueprint, self.layout, self._config)

    def _resolve(self, leaves: Sequence[Any]) -> list[Any]:
        return [pickle.loads(leaf) if isinstance(leaf, bytes) else leaf for leaf in leaves]
