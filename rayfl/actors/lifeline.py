"""The two processes of Ray that this one can't do without: the raylet of its node, and the GCS.

Ray itself ends a process without a word where it opens the object store of a raylet that is gone, and a
minute after it lost the GCS. Whoever looks before can stop in order.
"""

import contextlib
import math
import socket
import time
from typing import Any

import ray

from rayfl.errors import RunFailed

_LOOK_EVERY_S = 10.0
_FRESH_S = 0.5
"""A look costs half a millisecond, which rounds that are quick need not spend each time."""
_PATIENCE_S = 20.0
"""A GCS may come back where somebody restarts it; a raylet never does."""
_CONNECT_S = 4.0


class Lifeline:
    """Looks whether they are there. ``go_on`` says what to do when they are not."""

    def __init__(self, go_on: str) -> None:
        here = ray.get_runtime_context().get_node_id()
        raylet = next(node for node in ray.nodes() if node["NodeID"] == here)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._raylet = raylet["NodeManagerAddress"], raylet["NodeManagerPort"]
        self._gcs = host.strip("[]"), int(port)
        self._looked, self._missed_since = -math.inf, math.inf
        self._go_on = go_on

    def check(self) -> None:
        """Raise RunFailed where this process has no future."""
        now = self._looked = time.monotonic()
        if not _answers(self._raylet):
            raise RunFailed(f"Ray broke down, its raylet on this machine is gone: {self._go_on}")
        self._missed_since = math.inf if _answers(self._gcs) else min(self._missed_since, now)
        if now - self._missed_since > _PATIENCE_S:
            raise RunFailed(f"Ray broke down, its GCS did not answer for {_PATIENCE_S:g} s: {self._go_on}")

    def get(self, answers: list[Any]) -> list[Any]:
        """``ray.get``, with a look before and, where it takes long, meanwhile."""
        while True:
            if time.monotonic() - self._looked > _FRESH_S:
                self.check()
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                values: list[Any] = ray.get(answers, timeout=_LOOK_EVERY_S)
                return values


def _answers(end: tuple[str, int]) -> bool:
    try:
        socket.create_connection(end, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
