"""What FedSGA's bookkeeping takes of a round: observe, decide, calibrate (amortised), prototypes.

    python -m benchmarks.fedsga [--json] [--clients 20] [--samples 128] [--rounds 5]

ResNet-18 on 3x32x32 images in this process, one thread, batches of 32, FedSGA's defaults: one round in five
calibrates. Shares are of the time of all timed rounds together.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.workloads import FleetRounds, resnet18
from rayfl.algorithms.sga.client import DepthClient
from rayfl.algorithms.sga.fed_server import DecidingServer
from rayfl.algorithms.sga.main_server import HarmonisingServer
from rayfl.algorithms.sga.prototypes import PrototypeMemory
from rayfl.fleet import LocalFleet

BOOKKEEPING: dict[str, list[tuple[type, str]]] = {
    "observe": [(DepthClient, "observe")],
    "decide": [(DecidingServer, "decide"), (DepthClient, "start")],
    "calibrate": [
        (DepthClient, "probe"),
        (HarmonisingServer, "losses"),
        (DepthClient, "judge"),
        (DecidingServer, "calibrate"),
    ],
    "prototypes": [(PrototypeMemory, "add"), (PrototypeMemory, "move")],
}


def measure(clients: int, samples: int, rounds: int) -> dict[str, float]:
    """Seconds per round, and the share of each kind of bookkeeping in percent."""
    spent: Counter[str] = Counter()
    for kind, methods in BOOKKEEPING.items():
        for owner, name in methods:
            setattr(owner, name, _timed(getattr(owner, name), kind, spent))
    work = FleetRounds(resnet18("fedsga", clients, samples), LocalFleet)
    work.round()  # modules are built
    spent.clear()
    begun = time.perf_counter()
    for _ in range(rounds):
        work.round()
    total = time.perf_counter() - begun
    shares = {f"{kind}_percent": 100 * spent[kind] / total for kind in BOOKKEEPING}
    return {"round_s": total / rounds, **shares, "together_percent": sum(shares.values())}


def _timed(method: Callable[..., Any], kind: str, spent: Counter[str]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*arguments)
        finally:
            spent[kind] += time.perf_counter() - begun  # type: ignore[assignment]

    # What marks a method for the fleet must stay.
    timed.__dict__.update(method.__dict__)
    return timed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=128, help="per client")
    parser.add_argument("--rounds", type=int, default=5, help="timed ones")
    options = parser.parse_args()
    found = measure(options.clients, options.samples, options.rounds)
    print(
        json.dumps(found)
        if options.json
        else "\n".join(f"{name} {value:.3g}" for name, value in found.items())
    )


if __name__ == "__main__":
    main()
