"""Ray's failures to start, each as one line that says what to do."""

import socket
from typing import Any

import pytest
import ray
from ray._private import ray_constants, worker
from ray._private.runtime_env import uv_runtime_env_hook

from rayfl.actors.starting import start_ray
from rayfl.errors import UserError

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.10.4
This process on node 10.0.0.1:6379 was started with:
    Ray: 2.60.0
    Python: 3.11.9
"""


@pytest.fixture(autouse=True)
def somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: socket.socket())


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)


def test_what_it_is_asked_for_reaches_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **options: given.update(options))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    start_ray(num_cpus=3)
    assert given == {"num_cpus": 3}


@pytest.mark.parametrize("wanted", [False, True])
def test_under_uv_workers_run_in_the_environment_of_the_command(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """Ray would send them this folder and build them another there; it may, if its variable says so."""
    seen: list[Any] = []
    monkeypatch.setattr(
        ray, "init", lambda **options: seen.append(worker._maybe_modify_runtime_env({}, False))
    )
    monkeypatch.setattr(uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "rayfl"])
    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", raising=False)
    if wanted:
        monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "1")
    start_ray()
    assert ["working_dir" in environment for environment in seen] == [wanted]


CLUSTER = "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        (
            None,
            RuntimeError("raylet\n died"),
            r"can't start here \(RuntimeError: raylet died\): rayfl doctor",
        ),
        (None, ValueError("When connecting to an existing cluster, num_cpus and"), "RAY_ADDRESS=auto to run"),
        (None, Exception("The current node timed out during startup. This"), r"\(load \d+ on \d+ CPUs\)"),
        (CLUSTER, ConnectionError("nobody"), f"no Ray cluster can be joined at RAY_ADDRESS={CLUSTER}"),
        (CLUSTER, RuntimeError(MISMATCH), "runs Ray 2.50.0 on Python 3.10.4, this is Ray 2.60.0 on Python"),
    ],
)
def test_failures(
    address: str | None, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=message) as raised:
        start_ray()
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("mode", [None, "token"])
def test_a_head_that_asks_for_a_token(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Ray's error says nothing."""
    failing(monkeypatch, ConnectionError(f"Failed to connect to Ray cluster at {CLUSTER}"))
    monkeypatch.setenv("RAY_ADDRESS", CLUSTER)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(UserError) as caught:
        start_ray()
    assert ("set RAY_AUTH_MODE=token if it asks for one" in str(caught.value)) == (mode is None)


def test_a_bad_temporary_folder_is_found_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not matter to who joins a cluster."""
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + 80 * "x")
    failing(monkeypatch, AssertionError("Ray was started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="too long"):
        start_ray()
    monkeypatch.setenv("RAY_ADDRESS", CLUSTER)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    start_ray()


@pytest.mark.parametrize(
    ("address", "place"),
    [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("ray://head:10001", ("head", 10001)), ("[::1]:7", ("::1", 7)),
     ("auto", None), ("local", None)],
)  # fmt: skip
def test_a_cluster_that_is_not_there_is_noticed_before_ray_tries(
    address: str, place: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the address says which host and port it is."""
    asked: list[Any] = []

    def refuse(place: Any, timeout: float) -> None:
        asked.append(place)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setenv("RAY_ADDRESS", address)
    if place is None:
        start_ray()
    else:
        with pytest.raises(UserError, match=r"no Ray cluster can be joined at .*Connection refused"):
            start_ray()
    assert asked == ([] if place is None else [place])
