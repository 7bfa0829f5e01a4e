"""A shell in a Ray actor. Fail-stop: after one failure it refuses all further calls and says why."""

import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.errors import PartyLost, RunFailed
from rayfl.fleet_config import FleetConfig
from rayfl.machines import Need
from rayfl.shell import Request, Settled, Shell
from rayfl.topology import Topology


class PartyFailed(RunFailed):
    """An exception in a party, as the driver sees it: one line, with the original traceback as a note."""


@dataclass(frozen=True)
class Poison:
    """Travels in place of a result that was never made."""

    cause: RunFailed


class ShellActor:
    """What all kinds of actors are: a host of parties. Subclasses differ in what they reserve."""

    def __init__(self) -> None:
        self._shell: Shell | None = None
        self._failure: RunFailed | None = None
        self._received = 0
        # Ray maps tensors from its store, and torch warns that they are read-only: they are meant to be.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    @staticmethod
    def resources(config: FleetConfig) -> Need:
        """What each such actor reserves."""
        raise NotImplementedError

    def host(
        self,
        blueprint: bytes,
        paths: Sequence[str],
        members: Sequence[tuple[str, int]],
        topology: Topology,
        config: FleetConfig,
    ) -> int:
        """Build these parties, in place of any before them; the process id comes back."""
        sys.path.extend(path for path in paths if path not in sys.path)
        self._shell, self._failure, self._received = None, None, 0
        try:
            self._shell = Shell(pickle.loads(blueprint), members, topology, config, own_process=True)
        except Exception as error:
            self._failure = _failure(error)
        return os.getpid()

    def call(self, requests: Sequence[Request], *leaves: Any) -> None:
        """Several calls one after another, see :meth:`rayfl.shell.Shell.call`."""
        self._received += 1
        for leaf in leaves:
            if isinstance(leaf, Poison) and self._failure is None:
                self._failure = leaf.cause
        if self._failure is None and self._shell is not None:
            try:
                for request in requests:
                    self._shell.call(request, leaves)
            except Exception as error:
                self._failure = _failure(error)

    def export(self, ticket: int, keys: Mapping[int, int] | None) -> dict[int, Any] | Poison:
        """See :meth:`rayfl.shell.Shell.export`."""
        if self._failure is not None or self._shell is None:
            return Poison(self._failure or PartyFailed("the actor has no parties"))
        if ticket not in self._shell.kept:
            return Poison(_MISSED)
        return self._shell.export(ticket, keys)

    def settle(self, free: Sequence[int], sent: int) -> Settled:
        """See :meth:`rayfl.shell.Shell.settle`; ``sent`` is how many messages with calls there were.

        One that waited for something from a dead process never comes, and nobody else would notice.
        """
        report = self._shell.settle(free) if self._shell is not None else Settled()
        report.failure = self._failure or (_MISSED if self._received != sent else None)
        return report


_MISSED = PartyLost("a call needed what was lost with another process")


def _failure(error: Exception) -> RunFailed:
    """An exception that surely pickles, whatever the original was made of."""
    if isinstance(error, PartyLost):
        return error
    where = " ".join(getattr(error, "__notes__", ()))
    kind = "" if isinstance(error, RunFailed) else f"{type(error).__name__}: "
    failure = PartyFailed(f"{kind}{error} {where}".strip())
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure
