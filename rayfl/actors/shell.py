"""A shell in a Ray actor. Fail-stop: after one failure it refuses all further calls and says why."""

import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.errors import RunFailed
from rayfl.layout import FleetConfig
from rayfl.shell import Request, Settled, Shell, Topology


class PartyFailed(RunFailed):
    """An exception in a party, as the driver sees it: one line, with the original traceback as a note."""


@dataclass(frozen=True)
class Poison:
    """Travels in place of a result that was never made."""

    cause: PartyFailed


class ShellActor:
    """What all kinds of actors are: a host of parties. Subclasses differ in what they reserve."""

    def __init__(self) -> None:
        self._shell: Shell | None = None
        self._failure: PartyFailed | None = None
        # Ray maps tensors from its store, and torch warns that they are read-only: they are meant to be.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    @staticmethod
    def resources(config: FleetConfig) -> dict[str, float]:
        """What each such actor reserves."""
        raise NotImplementedError

    def host(
        self,
        blueprint: bytes,
        paths: Sequence[str],
        members: Sequence[tuple[str, int]],
        topology: Topology,
        skip_failing: bool,
    ) -> int:
        """Build these parties, in place of any before them; the process id comes back."""
        sys.path.extend(path for path in paths if path not in sys.path)
        self._shell, self._failure = None, None
        try:
            self._shell = Shell(pickle.loads(blueprint), members, topology, skip_failing)
        except Exception as error:
            self._failure = _failure(error)
        return os.getpid()

    def call(self, requests: Sequence[Request], *leaves: Any) -> None:
        """Several calls one after another, see :meth:`rayfl.shell.Shell.call`."""
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
        return self._shell.export(ticket, keys)

    def settle(self, free: Sequence[int]) -> Settled:
        """See :meth:`rayfl.shell.Shell.settle`."""
        report = self._shell.settle(free) if self._shell is not None else Settled()
        report.failure = self._failure
        return report


def _failure(error: Exception) -> PartyFailed:
    """An exception that surely pickles, whatever the original was made of."""
    where = " ".join(getattr(error, "__notes__", ()))
    failure = PartyFailed(f"{type(error).__name__}: {error} {where}".strip())
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure
