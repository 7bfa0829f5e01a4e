"""What Ray raises becomes a line that says what happened and what to do."""

import pytest
from ray import exceptions

from rayfl.actors.losses import explain, hosted
from rayfl.errors import PartyLost, RunFailed


def line(error: Exception) -> str:
    failure = explain(error, "the actor of client 3", 7)
    assert failure is not None
    assert "\n" not in str(failure)
    return f"{type(failure).__name__}: {failure}"


def within_a_task(error: Exception) -> Exception:
    """As a task sees it that needed the result of one that broke, twice over."""
    inner = exceptions.RayTaskError("export", "traceback", error, pid=1, ip="127.0.0.1")
    return exceptions.RayTaskError("call", "traceback", inner, pid=2, ip="127.0.0.1")


LOSSES = [
    exceptions.ActorDiedError(),
    exceptions.ActorUnavailableError("no connection", None),
    exceptions.NodeDiedError("gone"),
    exceptions.ObjectLostError("00", None, ""),
    exceptions.OwnerDiedError("00", None, ""),
    exceptions.WorkerCrashedError(),
    exceptions.ActorUnschedulableError("no node"),
]


@pytest.mark.parametrize("error", LOSSES, ids=lambda error: type(error).__name__)
def test_a_loss_can_be_made_good(error: Exception) -> None:
    for seen in (error, within_a_task(error)):
        assert line(seen) == "PartyLost: the actor of client 3 died in round 7"


def test_memory_and_room_come_with_a_remedy() -> None:
    assert line(exceptions.OutOfMemoryError("task killed")).startswith(
        "PartyLost: Ray ended an actor because"
    )
    assert "lower fleet.client_actors" in line(within_a_task(exceptions.OutOfMemoryError("task killed")))
    for full in (exceptions.ObjectStoreFullError(), exceptions.OutOfDiskError()):
        assert line(full).startswith("RunFailed: Ray's object store and the disk it spills to are full")


def test_a_broken_ray_ends_the_run() -> None:
    failure = explain(exceptions.RaySystemError(OSError("raylet"), "long\ntraceback"), "an actor", 2)
    assert type(failure) is RunFailed
    assert "round 2 (System error: raylet): go on with --resume" in str(failure)


def test_our_own_exceptions_stay_what_they_are() -> None:
    assert explain(exceptions.RayTaskError("f", "traceback", KeyError(3), pid=1, ip=""), "x", 1) is None
    assert issubclass(PartyLost, RunFailed)


def test_an_actor_is_known_by_its_parties() -> None:
    members = [("client", 2), ("client", 3), ("evaluator", 8), ("main", 0)]
    assert hosted(members) == "the actor of clients 2-3, main 0"
