"""What Ray's errors mean for a run, each in a line with what to do."""

from collections.abc import Sequence

from ray import exceptions

from rayfl.errors import PartyLost, RunFailed

_LOST = (
    exceptions.RayActorError,
    exceptions.ActorUnschedulableError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
)
_NO_MEMORY = (
    "Ray ended an actor because its machine was short of memory: lower fleet.client_actors or "
    "algorithm.batch_size, or make room on the machine, and go on with --resume"
)
_NO_ROOM = (
    "Ray's object store and the disk it spills to are full: free space where Ray keeps its session (/tmp/ray "
    "by default), or give Ray a larger store (ray start --object-store-memory), and go on with --resume"
)


def explain(error: Exception, who: str, t: int) -> RunFailed | None:
    """The failure behind an error of Ray's in round ``t``; None where it is an exception of our own code."""
    root = cause(error)
    if isinstance(root, exceptions.OutOfMemoryError):
        return PartyLost(f"{_NO_MEMORY} (round {t})")
    if isinstance(root, (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)):
        return RunFailed(f"{_NO_ROOM} (round {t})")
    if isinstance(root, _LOST):
        return PartyLost(f"{who} died in round {t}")
    if isinstance(root, (exceptions.LocalRayletDiedError, exceptions.RaySystemError)):
        return RunFailed(f"Ray broke down in round {t} ({_first_line(root)}): go on with --resume")
    return None


def cause(error: BaseException) -> BaseException:
    """The innermost error, where one task failed because of another."""
    while isinstance(error, exceptions.RayTaskError) and isinstance(error.cause, exceptions.RayError):
        error = error.cause
    return error


def hosted(members: Sequence[tuple[str, int]]) -> str:
    """The actor of some parties, in words: ``the actor of clients 0-4, main 0``."""
    ids: dict[str, list[int]] = {}
    for role, index in members:
        if role != "evaluator":
            ids.setdefault(role, []).append(index)
    names = [
        f"{role} {found[0]}" if len(found) == 1 else f"{role}s {min(found)}-{max(found)}"
        for role, found in ids.items()
    ]
    return f"the actor of {', '.join(names)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
