"""Ports that servers choose by default. A taken one is no fault: it tells what runs here."""

import socket
from collections.abc import Iterator

from rayfl.doctor.finding import Finding, Request, ok

_PORTS = {
    6379: "a Ray head, which runs with fleet.kind=ray and sweeps join",
    8265: "a Ray dashboard, which takes jobs",
    5000: "another MLflow: rayfl ui --port 5001",
}
"""Port -> who has probably taken it."""


def check(request: Request) -> Iterator[Finding]:
    """Who listens on this machine."""
    for port, who in _PORTS.items():
        yield ok(f"{port} is taken, probably by {who}" if _taken(port) else f"{port} is free")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
