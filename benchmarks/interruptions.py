"""A sweep that is stopped again and again, by Ctrl-C and by kill -9, and issued again each time.

    python -m benchmarks.interruptions [--json] [--times 10] [--seed 0]

The moments are drawn from the seed, in rounds. In the end every cell must have ended once, with the numbers
of a sweep that nobody stopped, and be in MLflow once, with one point per round.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from rayfl.runs import ENDED, load
from rayfl.seeding import numpy_generator

ROUNDS = 15
SWEEP = {
    "name": "interrupted",
    "preset": "fedavg.digits",
    "set": {"rounds": ROUNDS, "checkpoint_every": 3},
    "grid": {"algorithm.name": ["fedavg", "splitfed_v1", "hsfl"], "seed": [0, 1]},
}
MOST_ROUNDS = 8
"""A sweep is stopped after at most so many rounds more, of all its cells, are kept."""
ENDS_WITHIN_S = 120.0
"""The longest that a sweep may take to end when asked to."""


def start(file: Path, out: Path) -> subprocess.Popen[bytes]:
    """The sweep in a process of its own."""
    command = [sys.executable, "-m", "rayfl", "sweep", str(file), "--out", str(out), "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **quiet, start_new_session=True)  # type: ignore[call-overload, no-any-return]


def kept(out: Path) -> int:
    """The rounds that need not be run again."""
    rounds = 0
    for folder in out.glob("cells/*"):
        checkpoints = [int(path.stem.rpartition("-")[2]) for path in folder.glob("checkpoint-*.pt")]
        rounds += ROUNDS if (folder / "weights.pt").exists() else max(checkpoints, default=0)
    return rounds


def wait_for_rounds(process: subprocess.Popen[bytes], out: Path, rounds: int) -> None:
    """Until cells are under way and so many rounds more are kept, or the sweep has ended."""
    began, enough = time.time(), kept(out) + rounds
    under_way = False
    while process.poll() is None and not (under_way and kept(out) >= enough):
        starts = (path.stat().st_mtime for path in out.glob("cells/*/config.json"))
        under_way = under_way or max(starts, default=0.0) > began
        time.sleep(0.05)


def ended(out: Path) -> dict[str, int]:
    """When each cell that has ended did."""
    files = {file.parent.name: file for file in out.glob("cells/*/result.json")}
    stored = {key: load(file.parent) for key, file in files.items()}
    through = [key for key, found in stored.items() if found is not None and found.result.status in ENDED]
    return {key: files[key].stat().st_mtime_ns for key in through}


def outcome(out: Path) -> dict[str, object]:
    """Of each cell the fingerprint of its model, and its numbers but for what a clock measured."""
    stored = {folder.name: load(folder) for folder in sorted((out / "cells").iterdir())}
    return {
        key: (
            found.result.status,
            found.result.weights_sha256,
            [{k: v for k, v in row.items() if not k.startswith("wall/")} for row in found.result.history],
        )
        for key, found in stored.items()
        if found is not None
    }


def in_mlflow(out: Path) -> dict[str, list[int]]:
    """The steps of each cell's metric, by run."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rayfl")
    runs = [run for run in client.search_runs([experiment.experiment_id]) if "cell_hash" in run.data.tags]
    return {
        f"{run.data.tags['cell_hash']} {run.info.run_id}": sorted(
            point.step for point in client.get_metric_history(run.info.run_id, "comm/total_bytes")
        )
        for run in runs
    }


def interruptions(times: int, seed: int) -> dict[str, object]:
    """Stop a sweep so often, then let it end, and compare."""
    rng = numpy_generator(seed, "interruptions")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, calm, stopped = (Path(folder) / name for name in ("interrupted.yaml", "calm", "stopped"))
        file.write_text(yaml.safe_dump(SWEEP))
        if start(file, calm).wait():
            raise SystemExit("the sweep that nobody stops failed")
        signals, codes, through = [], [], {}
        for _ in range(times):
            process = start(file, stopped)
            wait_for_rounds(process, stopped, int(rng.integers(MOST_ROUNDS + 1)))
            time.sleep(float(rng.uniform(0, 1)))
            number = signal.SIGINT if rng.random() < 0.5 else signal.SIGKILL
            if process.poll() is not None:
                break
            process.send_signal(number)
            codes.append(process.wait(timeout=ENDS_WITHIN_S))
            signals.append(number.name)
            through |= {key: at for key, at in ended(stopped).items() if key not in through}
        exit_code = start(file, stopped).wait()
        once, expected = in_mlflow(stopped), outcome(calm)
        at_last = ended(stopped)
        return {
            "interruptions": len(signals),
            "of them kill -9": signals.count("SIGKILL"),
            "exit codes": " ".join(map(str, codes)),
            "last exit code": exit_code,
            "cells": len(expected),
            "ended before the last call": len(through),
            "of them run again": sum(at_last.get(key) != at for key, at in through.items()),
            "same weights and numbers": expected == outcome(stopped),
            "runs in MLflow": len(once),
            "one point per round": all(steps == list(range(ROUNDS + 1)) for steps in once.values()),
            "seconds": round(time.monotonic() - began),
        }


def main() -> None:
    """Do it and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--times", type=int, default=10, help="interruptions")
    parser.add_argument("--seed", type=int, default=0, help="root of the moments")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = interruptions(options.times, options.seed)
    print(
        json.dumps(found) if options.json else "\n".join(f"{key:<27} {value}" for key, value in found.items())
    )


if __name__ == "__main__":
    main()
