"""Two clients train one round in this process and again in Ray actors, to the same bits."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayfl.doctor.finding import Finding, Request, ok, problem


def check(request: Request) -> Iterator[Finding]:
    """Raises what the run or Ray's start raises."""
    import rayfl
    from rayfl import room
    from rayfl.actors.fleet import running_ray
    from rayfl.actors.placement import nodes

    if request.address is not None:
        os.environ["RAY_ADDRESS"] = request.address
    cluster = os.environ.get("RAY_ADDRESS")
    scratch = Path(request.scratch)
    settings: dict[str, Any] = {
        "rounds": 1,
        "data.num_clients": 2,
        # The nodes of a cluster find the data where runs look, not on this machine.
        "data.root": request.root if cluster else str(scratch / "data"),
        "tracking.enabled": False,
    }

    def weights(kind: str) -> tuple[str, float]:
        began = time.monotonic()
        result = rayfl.run("fedavg.digits", overrides={**settings, "fleet.kind": kind}, out=scratch / kind)
        return result.weights_sha256, time.monotonic() - began

    local, took_s = weights("local")
    yield ok(f"two clients trained one round in one process, {took_s:.1f} s")
    began = time.monotonic()
    with running_ray():
        how = f"joined {cluster}" if cluster else "started"
        yield ok(f"Ray {how} in {time.monotonic() - began:.1f} s: {room.in_all(nodes())}")
        actors, took_s = weights("ray")
    if actors == local:
        yield ok(f"the same round in Ray actors, {took_s:.1f} s: the same weights to the last bit")
    else:
        yield problem(
            "the same round in Ray actors gave other weights",
            "compare torch's release and OMP_NUM_THREADS on all machines; results from both don't mix",
        )
