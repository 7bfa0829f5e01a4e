"""What logging costs a run: the same training without a store, with SQLite, and with a server on loopback.

    python -m benchmarks.tracking [--samples 96] [--numbers 130] [--rounds 100] [--repeats 3]

FedAvg in this process, with so many training images for each of eight clients and so many numbers in each
round. Every repetition runs all stores one after another, so that a busy machine hits all alike; shown are
medians: seconds of a round without a store, and what share of its time a run waited for the store, during
its rounds and when it ended.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.workloads import small_cnn
from rayfl.config import ExperimentConfig
from rayfl.experiment import Experiment
from rayfl.tracking import MLflowObserver, prepare

_PORT = 5473


@dataclass
class Times:
    """Seconds of one run."""

    whole: float
    in_rounds: float
    at_end: float
    cpu: float
    """Of this process."""


def time_run(config: ExperimentConfig, uri: str | None, numbers: int, folder: Path) -> Times:
    """A run with so many numbers per round, logged to ``uri``."""
    extra = {f"client/test_accuracy/{i}": 0.1 * i for i in range(numbers)}
    experiment = Experiment(config)
    log = None if uri is None else MLflowObserver(prepare(uri, "rayfl", folder / "files"), files=folder)
    if log is not None:
        log.on_start(experiment)
    started, cpu, in_rounds = time.perf_counter(), time.process_time(), 0.0
    for row in experiment.rounds():
        row.update({key: value + row["round"] for key, value in extra.items()})
        before = time.perf_counter()
        if log is not None:
            log.on_round(experiment, row)
        in_rounds += time.perf_counter() - before
    result = experiment.result()
    before = time.perf_counter()
    if log is not None:
        log.on_end(experiment, result)
    ended = time.perf_counter()
    experiment.close()
    return Times(ended - started, in_rounds, ended - before, time.process_time() - cpu)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """An MLflow server over SQLite."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(_PORT)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    uri = f"http://127.0.0.1:{_PORT}"
    with (folder / "server.log").open("w") as said:
        process = subprocess.Popen(command, env=quiet, stdout=said, stderr=said)
        try:
            while not _answers(uri):
                time.sleep(0.2)
            yield uri
        finally:
            process.terminate()
            process.wait()


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=1):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def main() -> None:
    """Print a row per store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--numbers", type=int, default=130)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    config = replace(small_cnn("fedavg"), rounds=options.rounds)
    images = replace(config.data.synthetic, num_train=8 * options.samples)
    config = replace(config, data=replace(config.data, synthetic=images))
    times: dict[str, list[Times]] = {"none": [], "sqlite": [], "server": []}
    with tempfile.TemporaryDirectory() as scratch, server(Path(scratch)) as uri:
        for repeat in range(options.repeats):
            folder = Path(scratch) / str(repeat)
            stores = {"none": None, "sqlite": f"sqlite:///{folder}/mlflow.db", "server": uri}
            for store, place in stores.items():
                times[store].append(time_run(config, place, options.numbers, folder))
    print("| store | round, s | in rounds, % | at the end, % | whole, s | CPU, s |")
    print("|---|---|---|---|---|---|")
    for store, runs in times.items():
        whole, cpu = (statistics.median(getattr(run, name) for run in runs) for name in ("whole", "cpu"))
        in_rounds = statistics.median(100 * run.in_rounds / run.whole for run in runs)
        at_end = statistics.median(100 * run.at_end / run.whole for run in runs)
        alone = statistics.median((r.whole - r.in_rounds - r.at_end) / options.rounds for r in runs)
        print(f"| {store} | {alone:.2f} | {in_rounds:.1f} | {at_end:.1f} | {whole:.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
