"""What BESplit's parts take of a round (the nu of the paper's Table 1): EA, BCC and DTD.

    python -m benchmarks.besplit [--json] [--model cnn|resnet18] [--clients 10] [--samples 128] [--rounds 5]

In this process, one thread, batches of 32, the method's defaults; labels are skewed (Dirichlet 0.1), so that
there are pairs. EA is records and weights. BCC is the search for pairs and what the server's steps take
beyond as many steps without pairs. DTD is the auxiliary models and their teacher. Times are the processor's;
shares are of that of all timed rounds together.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.workloads import FleetRounds, resnet18, small_cnn
from rayfl.algorithms.bes.client import AssistedClient
from rayfl.algorithms.bes.config import PairingConfig
from rayfl.algorithms.bes.main_server import EvidentialServer
from rayfl.algorithms.bes.teacher import Teacher
from rayfl.config import ExperimentConfig
from rayfl.data import PartitionConfig
from rayfl.fleet import LocalFleet

PARTS: dict[str, list[tuple[type, str]]] = {
    "ea": [(EvidentialServer, "note"), (EvidentialServer, "weigh")],
    "match": [(EvidentialServer, "match")],
    "together": [(EvidentialServer, "together")],
    "alone": [(EvidentialServer, "alone")],
    "dtd": [(AssistedClient, "distil"), (Teacher, "receive"), (Teacher, "evidence")],
}


def workload(model: str, clients: int, samples: int) -> ExperimentConfig:
    """Skewed clients with a small CNN on 1x28x28 images or a ResNet-18 on 3x32x32 images."""
    made = resnet18("besplit", clients, samples) if model == "resnet18" else small_cnn("besplit")
    synthetic = replace(made.data.synthetic, num_train=clients * samples)
    partition = PartitionConfig(kind="dirichlet", alpha=0.1, min_size=2)
    data = replace(made.data, synthetic=synthetic, num_clients=clients, partition=partition)
    return replace(made, data=data)


def measure(config: ExperimentConfig, rounds: int) -> dict[str, float]:
    """Seconds per round, and the share of each part in percent."""
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for kind, methods in PARTS.items():
        for owner, name in methods:
            setattr(owner, name, _timed(getattr(owner, name), kind, spent, calls))
    apart = replace(config, algorithm=replace(config.algorithm, bcc=PairingConfig(mode="off")))
    _rounds(apart, rounds, spent, calls)
    alone = spent["alone"] / calls["alone"]
    total = _rounds(config, rounds, spent, calls)
    steps = 2 * calls["together"] + calls["alone"]
    shares = {
        "ea": spent["ea"],
        "bcc": spent["match"] + spent["together"] + spent["alone"] - steps * alone,
        "dtd": spent["dtd"],
    }
    return {
        "round_s": total / rounds,
        **{f"{kind}_percent": 100 * value / total for kind, value in shares.items()},
        "paired_percent": 100 * 2 * calls["together"] / steps,
    }


def _rounds(config: ExperimentConfig, rounds: int, *counters: Counter[str]) -> float:
    """Seconds that so many rounds take, and what was counted in them alone."""
    work = FleetRounds(config, LocalFleet)
    for _ in range(2):  # modules are built, and the first round has no pairs
        work.round()
    for counter in counters:
        counter.clear()
    begun = time.process_time()
    for _ in range(rounds):
        work.round()
    return time.process_time() - begun


def _timed(
    method: Callable[..., Any], kind: str, spent: Counter[str], calls: Counter[str]
) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begun = time.process_time()
        try:
            return method(*arguments)
        finally:
            spent[kind] += time.process_time() - begun  # type: ignore[assignment]
            calls[kind] += 1

    # What marks a method for the fleet must stay.
    timed.__dict__.update(method.__dict__)
    return timed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", choices=("cnn", "resnet18"), default="cnn")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=128, help="per client, on average")
    parser.add_argument("--rounds", type=int, default=5, help="timed ones")
    options = parser.parse_args()
    found = measure(workload(options.model, options.clients, options.samples), options.rounds)
    print(
        json.dumps(found)
        if options.json
        else "\n".join(f"{name} {value:.3g}" for name, value in found.items())
    )


if __name__ == "__main__":
    main()
