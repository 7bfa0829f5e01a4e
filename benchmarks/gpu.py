"""One card shared by fractions: FedAvg and SplitFed v1, ResNet-18 on CIFAR shapes, 20 clients.

    python -m benchmarks.gpu [--json] [--rounds 3] [--samples 256]

A plain loop, LocalFleet, and 1, 2 and 5 client actors on one card, in float32 and bfloat16: samples per
second, peak memory, and the largest difference of the weights from the same rounds on CPU (one round,
float32). Where there is no GPU it says so; where Ray is not installed, only what runs in this process.
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.workloads import METHODS, FleetRounds, PlainLoop, resnet18
from rayfl.config import ExperimentConfig, TrainConfig
from rayfl.fleet import LocalFleet
from rayfl.fleet_config import FleetConfig

CLIENTS = 20
ACTORS = (1, 2, 5)


def measure(config: ExperimentConfig, rounds: int, samples: int) -> dict[str, dict[str, float]]:
    """Samples per second and peak memory of each variant."""
    builders: dict[str, Callable[[], Any]] = {
        "plain loop": lambda: PlainLoop(config),
        "local fleet": lambda: FleetRounds(config, LocalFleet),
    }
    if importlib.util.find_spec("ray") is not None:
        from rayfl.actors.fleet import RayFleet

        for actors in ACTORS:
            shares = FleetConfig(
                kind="ray", client_actors=actors, cpus_per_actor=0, gpus_per_actor=round(1 / actors, 4)
            )
            builders[f"ray, {actors} actors"] = lambda shares=shares: FleetRounds(
                config, lambda plan: RayFleet(plan, shares)
            )
    return {name: _time(build(), rounds, samples) for name, build in builders.items()}


def _time(work: Any, rounds: int, samples: int) -> dict[str, float]:
    torch.cuda.reset_peak_memory_stats()
    times = []
    free_before = torch.cuda.mem_get_info()[0]
    for repeat in range(rounds + 1):
        started = time.perf_counter()
        work.round()
        torch.cuda.synchronize()
        if repeat:
            times.append(time.perf_counter() - started)
    held = free_before - torch.cuda.mem_get_info()[0]
    if isinstance(work, FleetRounds):
        work.fleet.close()
    return {
        "samples_per_s": CLIENTS * samples / statistics.median(times),
        "torch_peak_mb": torch.cuda.max_memory_allocated() / 2**20,
        "card_growth_mb": held / 2**20,
    }


def difference_from_cpu(method: str, samples: int) -> float:
    """The largest absolute difference of any weight after one float32 round."""
    states = []
    for device in ("cpu", "cuda"):
        config = resnet18(method, CLIENTS, samples, TrainConfig(device=device))
        rounds = FleetRounds(config, LocalFleet)
        rounds.round()
        states.append(rounds.weights())
        rounds.fleet.close()
    return max(
        (states[0][name].double() - value.cpu().double()).abs().max().item()
        for name, value in states[1].items()
    )


def main() -> None:
    """Measure and print, or say why not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (median)")
    parser.add_argument("--samples", type=int, default=256, help="training images per client")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "no GPU"}) if options.json else "no GPU here: nothing to measure")
        return
    results: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    for method in METHODS:
        results[f"{method}, difference from CPU"] = difference_from_cpu(method, min(options.samples, 64))
        for dtype in ("float32", "bfloat16"):
            config = resnet18(method, CLIENTS, options.samples, TrainConfig(device="cuda", dtype=dtype))
            results[f"{method}, {dtype}"] = measure(config, options.rounds, options.samples)
    print(json.dumps(results, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
