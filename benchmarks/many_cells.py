"""Whether a sweep of very many tiny cells stays quick, small and within its file handles.

    python -m benchmarks.many_cells [--json] [--cells 500]

One-round cells of a tiny model, as many at once as there are cores. The overhead per cell is wall time over
cells, less what the same work takes by itself, shared by the cores. Memory and open files are those of the
driver and of the largest trial process, when a tenth of the cells has ended and at the end.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import torch

import rayfl
from benchmarks.fleets import TINY_CELL, tiny
from rayfl.experiment import Experiment


@dataclass(frozen=True)
class Sample:
    """One look at the processes."""

    done: int
    driver_mb: float
    driver_files: int
    trial_mb: float
    trial_files: int


class Watch(threading.Thread):
    """Looks every few seconds."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._out, self._over = out, threading.Event()

    def run(self) -> None:
        while not self._over.wait(2.0):
            self.samples.append(self.look())

    def look(self) -> Sample:
        """Memory and files now."""
        done = len(list(self._out.glob("cells/*/result.json")))
        driver = _size(psutil.Process())
        trials = [_size(process) for process in psutil.process_iter() if _is_trial(process)]
        return Sample(done, *driver, *(max(trials, default=(0.0, 0))))

    def stop(self) -> None:
        """End it with a last look."""
        self._over.set()
        self.join()


def _is_trial(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["ray::Trial"] or "ray::Trial" in process.name()
    except psutil.Error:
        return False


def _size(process: psutil.Process) -> tuple[float, int]:
    try:
        return process.memory_info().rss / 1e6, process.num_fds()
    except psutil.Error:
        return 0.0, 0


def many_cells(cells: int) -> dict[str, float]:
    """Seconds beyond its own work per cell, and how memory and open files grow."""
    torch.set_num_threads(1)
    base = tiny(num_clients=4, num_train=200)
    Experiment(base).run()
    started = time.perf_counter()
    for seed in range(10):
        Experiment(replace(base, seed=seed)).run()
    bare = (time.perf_counter() - started) / 10
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        watch.start()
        started = time.perf_counter()
        rayfl.sweep({"name": "many", "set": TINY_CELL, "grid": {"seed": list(range(cells))}}, out=folder)
        per_cell = (time.perf_counter() - started) / cells
        watch.stop()
    early = next(sample for sample in watch.samples if sample.done >= cells / 10)
    late = [sample for sample in watch.samples if sample.trial_files][-1]
    return {
        "wall_s_per_cell": per_cell,
        "bare_s": bare,
        "overhead_s": per_cell - bare / cores,
        "driver_mb_early": early.driver_mb,
        "driver_mb_late": late.driver_mb,
        "driver_files_early": early.driver_files,
        "driver_files_late": late.driver_files,
        "trial_mb_early": early.trial_mb,
        "trial_mb_late": late.trial_mb,
        "trial_files_early": early.trial_files,
        "trial_files_late": late.trial_files,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cells", type=int, default=500, help="cells of the sweep")
    options = parser.parse_args()
    figures = many_cells(options.cells)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{what:<20} {value:10.3f}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
