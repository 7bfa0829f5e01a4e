"""A sweep that is stopped again and again, by Ctrl-C and by kill -9, and issued again each time.

    python -m benchmarks.interruptions [--json] [--times 10] [--seed 0]

The moments are drawn from the seed. In the end every cell must have ended once, with the numbers of a sweep
that nobody stopped, and be in MLflow once, with one point per round.
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

from rayfl.runs import load
from rayfl.seeding import numpy_generator

ROUNDS = 40
SWEEP = {
    "name": "interrupted",
    "preset": "fedavg.digits",
    "set": {"rounds": ROUNDS, "checkpoint_every": 3},
    "grid": {"algorithm.name": ["fedavg", "splitfed_v1", "hsfl"], "seed": [0, 1]},
}
LONGEST_S = 12.0


def start(file: Path, out: Path) -> subprocess.Popen[bytes]:
    """The sweep in a process of its own."""
    command = [sys.executable, "-m", "rayfl", "sweep", str(file), "--out", str(out), "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **quiet, start_new_session=True)  # type: ignore[call-overload, no-any-return]


def wait_for_rounds(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until cells are under way."""
    before = time.time()
    while process.poll() is None:
        newest = max((path.stat().st_mtime for path in out.glob("cells/*/config.json")), default=0.0)
        if newest > before:
            return
        time.sleep(0.1)


def outcome(out: Path) -> dict[str, str]:
    """The fingerprint of each cell's model."""
    stored = {folder.name: load(folder) for folder in sorted((out / "cells").iterdir())}
    return {key: "" if found is None else found.result.weights_sha256 for key, found in stored.items()}


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
    with tempfile.TemporaryDirectory() as folder:
        file, calm, stopped = (Path(folder) / name for name in ("interrupted.yaml", "calm", "stopped"))
        file.write_text(yaml.safe_dump(SWEEP))
        start(file, calm).wait()
        signals = []
        for _ in range(times):
            process = start(file, stopped)
            wait_for_rounds(process, stopped)
            time.sleep(float(rng.uniform(0, LONGEST_S)))
            if process.poll() is not None:
                break
            number = signal.SIGINT if rng.random() < 0.5 else signal.SIGKILL
            process.send_signal(number)
            process.wait()
            signals.append(number.name)
        exit_code = start(file, stopped).wait()
        once = in_mlflow(stopped)
        return {
            "interruptions": len(signals),
            "of them kill -9": signals.count("SIGKILL"),
            "cells": len(outcome(calm)),
            "last exit code": exit_code,
            "same weights": outcome(calm) == outcome(stopped),
            "runs in MLflow": len(once),
            "one point per round": all(steps == list(range(ROUNDS + 1)) for steps in once.values()),
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
        json.dumps(found) if options.json else "\n".join(f"{key:<22} {value}" for key, value in found.items())
    )


if __name__ == "__main__":
    main()
