"""What a prepared dataset costs: to open, in memory, and to read.

    python -m benchmarks.data [--json] [--only opening,memory,reading,loader]

All but ``loader`` (see its module) use 50,000 generated images of 3x32x32 bytes, 154 MB.
"""

import argparse
import json
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.loader import loader
from rayfl.data import DataConfig, Dataset, SyntheticConfig, open_dataset
from rayfl.seeding import numpy_generator

CIFAR_SIZED = DataConfig(
    name="synthetic",
    synthetic=SyntheticConfig(num_train=50_000, num_test=10_000, channels=3, height=32, width=32),
)
BATCH_SIZE = 256


def opening(repeats: int = 5) -> dict[str, float]:
    """Milliseconds to open the set in a new process, imports not counted: median."""
    open_dataset(CIFAR_SIZED)
    code = (
        "import time; from benchmarks.data import CIFAR_SIZED, open_dataset; begun = time.perf_counter(); "
        "open_dataset(CIFAR_SIZED); print(time.perf_counter() - begun)"
    )
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return {"open_ms": 1000 * statistics.median(seconds)}


def memory(processes: int = 8) -> dict[str, float]:
    """How much the memory of several processes grows when each reads the whole set, in copies of the set.

    Together: pages that several processes map are counted once. Private: pages of one process alone.
    """
    train = open_dataset(CIFAR_SIZED)[0]
    spawn = mp.get_context("spawn")
    pipes = []
    for _ in range(processes):
        mine, its = spawn.Pipe()
        spawn.Process(target=_reader, args=(train, its), daemon=True).start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    before = _measure(pipes)
    for pipe in pipes:
        pipe.send("read")
        pipe.recv()
    after = _measure(pipes)
    copy = train.path.stat().st_size
    grown = {key: sum(a[key] - b[key] for a, b in zip(after, before, strict=True)) for key in after[0]}
    return {
        "copy_mb": copy / 1e6,
        "together_copies": grown["Pss"] / copy,
        "private_copies": grown["Private"] / copy,
    }


def _measure(pipes: list[Connection]) -> list[dict[str, int]]:
    """What each process takes, once all have come to the same point: they also share torch's pages."""
    for pipe in pipes:
        pipe.send("measure")
    return [pipe.recv() for pipe in pipes]


def _reader(train: Dataset, pipe: Connection) -> None:
    torch.set_num_threads(1)
    for size in (*range(BATCH_SIZE), *[BATCH_SIZE] * 50):  # what batches take, of whatever set
        train.batch(range(size))
    _resident()
    pipe.send("ready")
    pipe.recv()
    pipe.send(_resident())
    pipe.recv()
    for start in range(0, len(train), BATCH_SIZE):
        train.batch(range(start, min(start + BATCH_SIZE, len(train))))
    pipe.send("done")
    pipe.recv()
    pipe.send(_resident())


def _resident() -> dict[str, int]:
    """Bytes of this process: each page's share among those that map it, and pages that no other maps."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {"Pss": sizes["Pss"], "Private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def reading(batches: int = 400) -> dict[str, float]:
    """Images per second of one core through ``Dataset.batch``, normalised float32, rows at random."""
    torch.set_num_threads(1)
    train = open_dataset(CIFAR_SIZED)[0]
    rows = numpy_generator(0, "reading").integers(len(train), size=(batches, BATCH_SIZE))
    train.batch(range(len(train)))
    begun = time.process_time()
    for chosen in rows:
        train.batch(chosen)
    return {"images_per_s": batches * BATCH_SIZE / (time.process_time() - begun)}


MEASUREMENTS = {"opening": opening, "memory": memory, "reading": reading, "loader": loader}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="some of them, comma-separated")
    options = parser.parse_args()
    results = {name: MEASUREMENTS[name]() for name in options.only.split(",")}
    if options.json:
        print(json.dumps(results))
        return
    for name, figures in results.items():
        print("\n".join(f"{name}: {what} {value:.4g}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
