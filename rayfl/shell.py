"""A shell hosts parties in one process: it passes calls on to them and keeps the results under tickets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar

import torch

from rayfl import tree
from rayfl.deadline import TookTooLong, backstop, deadline, prepare_deadline
from rayfl.errors import PartyLost, RunFailed
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint, Host
from rayfl.ledger import Entry, entry
from rayfl.messages import Update, is_finite, moved, weigh
from rayfl.roles import Client, Evaluator, Role
from rayfl.topology import Topology, gets_one


@dataclass(frozen=True)
class Argument:
    """A parcel as one host meets it."""

    sender: str
    axis: str | None
    here: tuple[tuple[int, dict[int, int] | None], ...] = ()
    """Pieces kept in this shell: (ticket, key -> key it was made under; None for all)."""
    leaves: tuple[int, ...] = ()
    """Positions of pieces that come from elsewhere."""
    given: Mapping[int, Any] | None = None
    """Values that the driver made itself."""


@dataclass(frozen=True)
class Request:
    """One call to many parties of one host."""

    ticket: int
    role: str
    ids: tuple[int, ...]
    method: str
    arguments: tuple[Any, ...]
    """``Argument`` or plain values."""
    t: int
    phase: str
    per_client: bool = False
    pooled: bool = False
    free: tuple[int, ...] = ()
    """Tickets that nobody holds any more."""


@dataclass
class Settled:
    """What a host reports at the end of a round."""

    traffic: Counter[Entry] = field(default_factory=Counter)
    failed_clients: dict[int, str] = field(default_factory=dict)
    """Who was left out of the rest of the round, and why."""
    not_finite: dict[int, str] = field(default_factory=dict)
    """Who sent a NaN or an infinity first when and where, left out or not."""
    failure: BaseException | None = None


class NotFinite(ArithmeticError):
    """A client sends a NaN or an infinity."""


class Shell:
    """Builds its parties from the blueprint and calls them.

    Of ``config`` it follows what is said of clients that fail or take too long. An ``own_process`` ends when
    one of its clients can't be stopped otherwise.
    """

    host_type: ClassVar[type[Host]] = Host

    def __init__(
        self,
        blueprint: Blueprint,
        members: Iterable[tuple[str, int]],
        topology: Topology,
        config: FleetConfig | None = None,
        own_process: bool = False,
    ) -> None:
        host = self.host_type(blueprint)
        self.device = blueprint.device
        cast = {**blueprint.algorithm.cast(), "evaluator": Evaluator}
        self.parties: dict[tuple[str, int], Role] = {
            (role, index): cast[role](host, index) for role, index in members
        }
        self.topology = topology
        self.num_clients = blueprint.facts.num_clients
        self.config = config or FleetConfig()
        self.own_process = own_process
        prepare_deadline(self.config.client_timeout_s)
        self.kept: dict[int, dict[int, Any]] = {}
        self.settled = Settled()
        shards = {index for role, index in self.parties if role == "main"}
        self._whole = {
            "client": self._whole_blocks({index for role, index in self.parties if role == "client"}),
            "main": self._whole_blocks({i for i, shard in enumerate(topology.shard_of) if shard in shards}),
        }

    def _whole_blocks(self, clients: set[int]) -> set[int]:
        """Blocks of the summation tree that lie within some clients."""
        missing = {tree.block_of(i, self.num_clients) for i in range(self.num_clients) if i not in clients}
        return set(range(tree.NUM_BLOCKS)) - missing

    def call(self, request: Request, leaves: Sequence[Any]) -> None:
        """Pass a call on to every party it names and keep the results."""
        for ticket in request.free:
            self.kept.pop(ticket, None)
        if self.device != "cpu":
            leaves = [moved(leaf, self.device) for leaf in leaves]
        gathered = [self._gather(item, leaves) for item in request.arguments]
        for item, values in zip(request.arguments, gathered, strict=True):
            if isinstance(item, Argument) and item.axis is None:
                self._count(request, item.sender, values.values(), len(request.ids))
        results: dict[int, Any] = {}
        pooled: dict[int, tuple[int, tree.BlockSum]] = {}
        for index in request.ids:
            if request.role == "client" and index in self.settled.failed_clients:
                continue
            result = self._call_one(request, index, gathered)
            if request.role == "client" and index in self.settled.failed_clients:
                continue
            made = result if request.per_client else {index: result}
            for key, value in made.items():
                block = tree.block_of(key, self.num_clients)
                poolable = request.pooled and isinstance(value, Update) and value.mass > 0
                if poolable and block in self._whole[request.role]:
                    pooled.setdefault(block, (key, tree.BlockSum()))[1].add(value)
                else:
                    results[key] = value
        for first, block_sum in pooled.values():
            results[first] = block_sum.result()
        self.kept[request.ticket] = results

    def _gather(self, item: Any, leaves: Sequence[Any]) -> Any:
        if not isinstance(item, Argument):
            return item
        values = dict(item.given or {})
        for ticket, keys in item.here:
            held = self.kept[ticket]
            pairs = held.items() if keys is None else ((k, held[s]) for k, s in keys.items() if s in held)
            values.update(pairs)
        for position in item.leaves:
            values.update(leaves[position])
        return dict(sorted(values.items()))

    def _call_one(self, request: Request, index: int, gathered: list[Any]) -> Any:
        party = self.parties[request.role, index]
        where = f"in {request.role} {index}, round {request.t}, {type(party).__name__}.{request.method}"
        limit = self.config.client_timeout_s if isinstance(party, Client) else None
        try:
            values = [
                self._hand_over(request, index, item, value)
                for item, value in zip(request.arguments, gathered, strict=True)
            ]
            with backstop(limit if self.own_process else None), deadline(limit):
                result = getattr(party, request.method)(*values)
            if isinstance(party, Client) and is_dataclass(result) and request.phase != "evaluation":
                self._check_finite(result, index, where)
            return result
        except Exception as error:
            error.add_note(where)
            if isinstance(party, Client) and self._skips(error):
                self.settled.failed_clients[index] = f"{type(error).__name__}: {error} ({where})"
                with backstop(limit if self.own_process else None):
                    party.abandon()
                return None
            if isinstance(error, torch.OutOfMemoryError):
                raise RunFailed(f"{self._no_gpu_memory()} {where}") from error
            if isinstance(error, TookTooLong):
                retry = self.config.on_client_timeout == "retry"
                raise (PartyLost if retry else RunFailed)(f"{error} {where}") from error
            raise

    def _no_gpu_memory(self) -> str:
        share = self.config.gpus_per_actor
        fewer = f"fleet.gpus_per_actor={min(2 * share, 1):g}, for fewer actors on a GPU, or "
        return f"a GPU has no memory left: set {fewer if 0 < share < 1 else ''}a smaller algorithm.batch_size"

    def _skips(self, error: Exception) -> bool:
        late = isinstance(error, TookTooLong)
        return (self.config.on_client_timeout if late else self.config.on_client_error) == "skip"

    def _check_finite(self, message: Any, index: int, where: str) -> None:
        if not is_finite(message):
            what = f"a NaN or an infinity in its {type(message).__name__}"
            self.settled.not_finite.setdefault(index, f"{what} ({where})")
            if self.config.on_client_error == "skip":
                raise NotFinite(what)

    def _hand_over(self, request: Request, index: int, item: Any, values: Any) -> Any:
        """A party's share of an argument, entered into the ledger on its way."""
        if not isinstance(item, Argument):
            return values
        if item.axis is None:
            return values[0]
        keys = self.topology.wanted(request.role, index, item.axis, request.per_client)
        share = values if keys is None else {key: values[key] for key in keys if key in values}
        self._count(request, item.sender, share.values())
        if not gets_one(request.role, item.axis):
            return share
        if not share:
            raise KeyError(f"nothing for {request.role} {index} in a parcel from {item.sender}")
        return next(iter(share.values()))

    def _count(self, request: Request, sender: str, values: Iterable[Any], receivers: int = 1) -> None:
        if entry(request.t, request.phase, sender, request.role, "control") is None:
            return
        for value in values:
            for kind, size in weigh(value).items():
                line = entry(request.t, request.phase, sender, request.role, kind)
                assert line is not None
                self.settled.traffic[line] += size * receivers

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> dict[int, Any]:
        """Kept results for another host: key -> value."""
        held = self.kept[ticket]
        chosen = (
            held if keys is None else {key: held[source] for key, source in keys.items() if source in held}
        )
        return chosen if self.device == "cpu" else moved(chosen, "cpu")

    def settle(self, free: Iterable[int]) -> Settled:
        """Close the round: what was counted and who failed since the last time."""
        for ticket in free:
            self.kept.pop(ticket, None)
        report, self.settled = self.settled, Settled()
        return report
