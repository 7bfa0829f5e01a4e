"""Starting Ray or joining a cluster, whose failures come as one line that says what to do."""

import os
import re
import socket
from typing import Any

import ray
from ray._private import ray_constants

from rayfl.actors.temp_folder import check_temp_folder, temp_folder
from rayfl.errors import UserError

_CONNECT_S = 4.0


def start_ray(**options: Any) -> None:
    """``ray.init``. Raises UserError for whatever keeps it from working."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _probe(address)
    else:
        check_temp_folder()
    if "RAY_ENABLE_UV_RUN_RUNTIME_ENV" not in os.environ:
        # Under `uv run`, Ray would send this folder to all nodes, data and all, and build every worker an
        # environment in a copy of it. It reads the variable when it is imported, maybe long before.
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    try:
        ray.init(**options)
    except Exception as error:
        raise UserError(_explain(error, address)) from error


def _probe(address: str) -> None:
    """Ray itself takes a minute to notice that nobody is there."""
    place = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address)
    if place is None:
        return
    try:
        socket.create_connection((place[1], int(place[2])), timeout=_CONNECT_S).close()
    except OSError as error:
        raise UserError(_no_cluster(address, error)) from error


def _no_cluster(address: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    # Ray's own error is the same where the head refuses who has no token.
    token = "set RAY_AUTH_MODE=token if it asks for one, " if "RAY_AUTH_MODE" not in os.environ else ""
    return (
        f"no Ray cluster can be joined at RAY_ADDRESS={address} ({reason}): start it, {token}or unset "
        f"RAY_ADDRESS to use this machine"
    )


def _explain(error: Exception, address: str | None) -> str:
    text = " ".join(str(error).split())
    versions = re.search(r"Version mismatch: .*?Ray: (\S+) Python: (\S+) .*?Ray: (\S+) Python: (\S+)", text)
    if versions:
        return (
            "the cluster runs Ray {} on Python {}, this is Ray {} on Python {}: use the same releases on "
            "both sides".format(*versions.groups())
        )
    if address:
        return _no_cluster(address, error)
    if "connecting to an existing cluster" in text:
        return (
            "a Ray head was started on this machine: set RAY_ADDRESS=auto to run there, or RAY_ADDRESS=local "
            "for a Ray of this run's own; if it has crashed, ray stop clears it away"
        )
    if "timed out during startup" in text:
        return (
            f"Ray's processes did not come up within 30 s (load {os.getloadavg()[0]:.0f} on {os.cpu_count()} "
            f"CPUs): try again when the machine is less busy, else see {temp_folder()}/session_latest/logs"
        )
    return f"Ray can't start here ({type(error).__name__}: {text[:200]}): rayfl doctor finds out why"
