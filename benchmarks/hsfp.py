"""Accuracy, bytes by tier, client memory and simulated time of a sweep's cells that have ended in a folder.

    python -m benchmarks.hsfp OUT SWEEP.yaml [SWEEP.yaml ...]

Means over seeds, for accuracy with the sample deviation. Memory is what one batch takes at a client, as
``rayfl cost`` has it. Simulated time adds up a participant's arithmetic at 10 GFLOP/s, its bytes at 10 Mbit/s
and an edge's bytes to the cloud at 1 Gbit/s; arithmetic of edges and cloud is left out, and nothing overlaps.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rayfl import costs, runs
from rayfl.config import ExperimentConfig
from rayfl.experiment import Result
from rayfl.loading.sweeps import load_sweep
from rayfl.report.table import coordinates

CLIENT_FLOPS, CLIENT_LINK, EDGE_LINK = 1e10, 10e6 / 8, 1e9 / 8
"""FLOP/s; bytes per second."""


@dataclass(frozen=True)
class Cost:
    """What one cell came to."""

    accuracy: float
    client_bytes: float
    """Over the links of clients."""
    cloud_bytes: float
    """Between edges and cloud."""
    seconds: float
    """Simulated."""


def cost(config: ExperimentConfig, result: Result) -> Cost:
    """Of a run that has ended."""
    client_bytes = cloud_bytes = seconds = 0.0
    for row in result.history:
        if not row["round"]:
            continue
        cloud = sum(count for key, count in row.items() if key.startswith("comm/edge-cloud_"))
        client = sum(
            count
            for key, count in row.items()
            if key.startswith("comm/client-") and key.endswith("_bytes") and "eval" not in key
        )
        participants = row["client/num_participants"]
        seconds += row["flops/client"] / CLIENT_FLOPS + client / participants / CLIENT_LINK
        seconds += cloud / config.data.num_edges / EDGE_LINK
        client_bytes, cloud_bytes = client_bytes + client, cloud_bytes + cloud
    return Cost(result.metrics["final/accuracy"], client_bytes, cloud_bytes, seconds)


def collect(out: Path, name: str) -> Iterator[tuple[str, str, ExperimentConfig, Cost]]:
    """Setting, method, config and cost of each cell of a sweep that has ended."""
    sweep = load_sweep(name)
    for config in sweep.cells():
        stored = runs.load(runs.cell_folder(out, config.cell_hash))
        if stored is None or stored.result.status not in runs.ENDED:
            continue
        place = coordinates(config, sweep.grid)
        method = " ".join(str(place[axis]) for axis in place if axis.startswith("algorithm"))
        setting = ", ".join(
            str(place[axis]) for axis in place if not axis.startswith("algorithm") and axis != "seed"
        )
        yield setting, method, config, cost(config, stored.result)


def main() -> None:
    """Print a table for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("sweeps", nargs="+")
    options = parser.parse_args()
    found: dict[str, dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    memory: dict[str, int] = {}
    for name in options.sweeps:
        for setting, method, config, one in collect(options.out, name):
            found[setting][method].append(one)
            if method not in memory:
                memory[method] = costs.estimate(replace(config, rounds=1)).memory.total
    for setting, methods in found.items():
        print(f"\n{setting}\n")
        print("| method | n | accuracy, % | MB of clients | MB edges-cloud | kB a client | simulated s |")
        print("|---|---|---|---|---|---|---|")
        for method, cells in methods.items():
            accuracies = [100 * cell.accuracy for cell in cells]
            spread = statistics.stdev(accuracies) if len(cells) > 1 else 0.0
            clients, cloud, seconds = (
                statistics.mean(getattr(cell, name) for cell in cells)
                for name in ("client_bytes", "cloud_bytes", "seconds")
            )
            print(
                f"| {method} | {len(cells)} | {statistics.mean(accuracies):.1f} ± {spread:.1f} | "
                f"{clients / 1e6:.1f} | {cloud / 1e6:.1f} | {memory[method] / 1e3:.0f} | {seconds:.0f} |"
            )


if __name__ == "__main__":
    main()
