"""The cells of sweeps in one folder, compared in pairs of equal seed.

    python -m benchmarks.paired OUT SWEEP.yaml [SWEEP.yaml ...] [--against TEXT]

Rows are the grid's settings of the method; columns: accuracy after the last round and GFLOP per client and
round, means and sample deviations over seeds; for each row named by ``--against``, the difference and the
p-value of a paired t-test (two-sided, no correction for their number).
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from scipy import stats

from rayfl import runs
from rayfl.loading.sweeps import load_sweep
from rayfl.report.table import coordinates

Key = tuple[str, str]
"""Everything but method, then the method."""


def collect(out: Path, sweeps: list[str]) -> dict[Key, dict[int, tuple[float, float]]]:
    """(setting, method) -> seed -> (accuracy, FLOPs of a client per round)."""
    found: dict[Key, dict[int, tuple[float, float]]] = defaultdict(dict)
    for name in sweeps:
        sweep = load_sweep(name)
        for config in sweep.cells():
            stored = runs.load(runs.cell_folder(out, config.cell_hash))
            if stored is None or stored.result.status not in runs.ENDED:
                continue
            place = coordinates(config, sweep.grid)
            method = " ".join(str(place[axis]) for axis in place if axis.startswith("algorithm"))
            if config.algorithm.name not in method:
                method = f"{config.algorithm.name} {method}"
            rest = ", ".join(
                str(place[axis]) for axis in place if not axis.startswith("algorithm") and axis != "seed"
            )
            history = stored.result.history
            flops = statistics.mean(row["flops/client"] for row in history if row["round"] > 0)
            accuracy = stored.result.metrics.get("final/accuracy", float("nan"))
            found[rest, method][config.seed] = accuracy, flops
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("sweeps", nargs="+")
    parser.add_argument("--against", action="append", default=[], help="a row that all others are held to")
    options = parser.parse_args()
    found = collect(options.out, options.sweeps)
    for setting in dict.fromkeys(key[0] for key in found):
        heads = "".join(f" | - {text} (p)" for text in options.against)
        print(f"\n{setting}\n\n| method | n | accuracy, % | GFLOP{heads} |")
        print("|" + "---|" * (4 + len(options.against)))
        for (where, method), by_seed in sorted(found.items(), key=lambda item: _mean(item[1])):
            if where != setting:
                continue
            accuracies = [100 * accuracy for accuracy, _ in by_seed.values()]
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            flops = statistics.mean(flops for _, flops in by_seed.values()) / 1e9
            cells = "".join(f" | {_against(by_seed, found[setting, text])}" for text in options.against)
            print(
                f"| {method} | {len(accuracies)} | {_mean(by_seed):.2f} ± {spread:.2f} | {flops:.3f}{cells} |"
            )


def _mean(by_seed: dict[int, tuple[float, float]]) -> float:
    return statistics.mean(100 * accuracy for accuracy, _ in by_seed.values())


def _against(mine: dict[int, tuple[float, float]], other: dict[int, tuple[float, float]]) -> str:
    seeds = sorted(mine.keys() & other.keys())
    differences = [100 * (mine[seed][0] - other[seed][0]) for seed in seeds]
    if len(differences) < 2 or not any(differences):
        return "-"
    test = stats.ttest_1samp(differences, 0.0)
    return f"{statistics.mean(differences):+.2f} ({test.pvalue:.3f})"


if __name__ == "__main__":
    main()
