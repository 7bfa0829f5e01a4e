"""What the fleets cost: the same work as plain loops, in this process and in Ray actors.

    python -m benchmarks.fleets [--json] [--repeats 5] [--only small_cnn,empty_round,...]

Every repetition runs all variants one after another, so that a busy machine hits all alike; ratios are of
medians. Two plain processes are the limit for two actors.
"""

import argparse
import json
import multiprocessing as mp
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.workloads import METHODS, FleetRounds, PlainLoop, resnet18, small_cnn
from rayfl.actors.fleet import RayFleet, ensure_ray
from rayfl.algorithms.fedavg import FedAvg
from rayfl.config import ExperimentConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.experiment import Experiment
from rayfl.fleet import LocalFleet
from rayfl.fleet_config import FleetConfig
from rayfl.models import ModelConfig

WORKLOADS: dict[str, Callable[[str], ExperimentConfig]] = {"small_cnn": small_cnn, "resnet18": resnet18}
COLOCATED = FleetConfig(kind="ray", client_actors=2, cpus_per_actor=0, placement="colocated")
TINY_CELL = {
    "rounds": 1, "model.name": "cnn", "data.name": "synthetic", "data.num_clients": 4,
    "data.partition.min_size": 0, "data.synthetic.num_train": 200, "data.synthetic.num_test": 100,
    "data.synthetic.height": 8, "data.synthetic.width": 8,
}  # fmt: skip
"""``tiny`` with one round and four clients, as settings."""
SEPARATE = FleetConfig(kind="ray", client_actors=2, cpus_per_actor=0, placement="separate")


class TwoProcesses:
    """Two plain loops at once, each with half the clients and no exchange."""

    def __init__(self, config: ExperimentConfig) -> None:
        spawn = mp.get_context("spawn")
        half = config.data.num_clients // 2
        self.pipes = []
        self.processes = []
        for clients in (range(half), range(half, config.data.num_clients)):
            mine, its = spawn.Pipe()
            process = spawn.Process(target=_plain_process, args=(config, clients, its), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def round(self) -> None:
        """A round of both."""
        for pipe in self.pipes:
            pipe.send("round")
        for pipe in self.pipes:
            pipe.recv()

    def close(self) -> None:
        """Stop both."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()


def _plain_process(config: ExperimentConfig, clients: range, pipe: Connection) -> None:
    torch.set_num_threads(1)
    loop = PlainLoop(config, clients)
    pipe.send("ready")
    while pipe.recv() is not None:
        loop.round()
        pipe.send("done")


def time_workload(name: str, method: str, repeats: int) -> dict[str, float]:
    """Median seconds per round of each variant."""
    config = WORKLOADS[name](method)
    two = TwoProcesses(config)
    fleets = {
        "local fleet": FleetRounds(config, LocalFleet),
        "ray, 2 actors, colocated": FleetRounds(config, lambda plan: RayFleet(plan, COLOCATED)),
        "ray, 2+2 actors, separate": FleetRounds(config, lambda plan: RayFleet(plan, SEPARATE)),
    }
    variants: dict[str, Any] = {"plain loop": PlainLoop(config), "two plain processes": two, **fleets}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for repeat in range(repeats + 1):
        for variant, work in variants.items():
            started = time.perf_counter()
            work.round()
            if repeat > 0:
                times[variant].append(time.perf_counter() - started)
    two.close()
    for fleet in fleets.values():
        fleet.fleet.close()
    return {variant: statistics.median(values) for variant, values in times.items()}


def tiny(
    num_clients: int = 100, rounds: int = 1, num_train: int = 2000, **algorithm: Any
) -> ExperimentConfig:
    """FedAvg with next to no work."""
    return ExperimentConfig(
        rounds=rounds,
        algorithm=FedAvg.Config(**algorithm),
        data=DataConfig(
            name="synthetic",
            num_clients=num_clients,
            partition=PartitionConfig(min_size=0),
            synthetic=SyntheticConfig(num_train=num_train, num_test=100, height=8, width=8),
        ),
        model=ModelConfig(name="cnn"),
    )


def empty_round(repeats: int) -> dict[str, float]:
    """Seconds of a round of 100 clients that make no step, on two actors."""
    rounds = FleetRounds(tiny(local_epochs=0), lambda plan: RayFleet(plan, COLOCATED))
    times = []
    for repeat in range(4 * repeats):
        started = time.perf_counter()
        rounds.round()
        if repeat >= repeats:
            times.append(time.perf_counter() - started)
    rounds.fleet.close()
    return {"seconds": statistics.median(times)}


def sweep_cell(few: int = 4, many: int = 24) -> dict[str, float]:
    """Seconds that a sweep adds to a tiny cell (scheduling, logging, files), one cell at a time, and what it
    costs once (a process that imports torch). From a short and a long sweep: the slope and the rest."""
    import rayfl

    base = tiny(num_clients=4, num_train=200)
    started = time.perf_counter()
    for seed in range(few):
        Experiment(replace(base, seed=seed)).run()
    bare = (time.perf_counter() - started) / few
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for name, seeds in (("warm", [0]), ("few", range(1, 1 + few)), ("many", range(100, 100 + many))):
            grid = {"name": name, "set": TINY_CELL, "grid": {"seed": list(seeds)}, "max_concurrent": 1}
            started = time.perf_counter()
            rayfl.sweep(grid, out=folder)
            seconds.append(time.perf_counter() - started)
    per_cell = (seconds[2] - seconds[1]) / (many - few)
    return {
        "bare_s": bare,
        "per_cell_s": per_cell,
        "overhead_s": per_cell - bare,
        "once_s": seconds[1] - few * per_cell,
    }


def memory() -> dict[str, float]:
    """Peak memory, MB, of two FedAvg rounds with 100 and with 10,000 virtual clients, a tenth taking part."""
    result = {}
    for clients in (100, 10_000):
        code = f"from benchmarks.fleets import _memory_of; _memory_of({clients})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        result[f"{clients}_clients_mb"] = float(done.stdout)
    return result


def _memory_of(clients: int) -> None:
    Experiment(tiny(num_clients=clients, rounds=2, num_train=20_000, participation=0.1)).run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions (median)")
    parser.add_argument("--only", default="small_cnn,resnet18,empty_round,sweep_cell,memory")
    options = parser.parse_args()
    chosen = options.only.split(",")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    if "memory" in chosen:
        results["memory"] = memory()
    ensure_ray(num_cpus=4)
    for name in WORKLOADS:
        for method in METHODS if name in chosen else ():
            seconds = time_workload(name, method, options.repeats)
            results[f"{name} {method}"] = {"seconds": seconds, "ratios": ratios(seconds)}
    if "empty_round" in chosen:
        results["empty_round"] = empty_round(options.repeats)
    if "sweep_cell" in chosen:
        results["sweep_cell"] = sweep_cell()
    print(json.dumps(results) if options.json else describe(results))


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Speed against the plain loop, and of fleets on two actors against two plain processes."""
    plain, limit = seconds["plain loop"], seconds["two plain processes"]
    result = {f"{name} / plain loop, time": value / plain for name, value in seconds.items()}
    result.update(
        {f"{name}, share of the limit": limit / value for name, value in seconds.items() if "ray" in name}
    )
    return result


def describe(results: dict[str, Any]) -> str:
    """Plain text."""
    lines = []
    for name, values in results.items():
        lines.append(name)
        for key, value in values.get("ratios", values).items():
            lines.append(f"  {key:<52} {value:8.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
