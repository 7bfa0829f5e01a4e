"""What the commands show of a run: progress while it goes on, a summary at its end."""

import sys
import time
from typing import Any

from rayfl.experiment import Experiment, Observer, Result
from rayfl.tasks import headline
from rayfl.text import in_bytes, in_time


class RunProgress(Observer):
    """Round, accuracy, bytes and time left on stderr: a live line on a terminal, else one per evaluation."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._headline = ""

    def on_start(self, experiment: Experiment) -> None:
        self._first, self._began = experiment.round, time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("round {task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=experiment.config.rounds, completed=experiment.round)
            self._bar.start()

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        done, rounds = experiment.round, experiment.config.rounds
        parts = [in_bytes(row["comm/total_bytes"])] if "comm/total_bytes" in row else []
        found = headline(row)
        if found is not None:
            self._headline = "{} {:.4f}".format(*found)
        parts.insert(0, self._headline)
        if self._first < done < rounds:
            left = (time.monotonic() - self._began) / (done - self._first) * (rounds - done)
            parts.append(f"{in_time(left)} left")
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description="  ".join(parts))
        elif found is not None:
            print(f"round {done}/{rounds}  {'  '.join(parts)}", file=sys.stderr, flush=True)

    def on_end(self, experiment: Experiment, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def summary(result: Result, out: str) -> str:
    """A run's outcome in a few lines."""
    metrics = result.metrics
    lines = [f"{result.status} after {result.rounds} rounds"]
    found = headline(metrics)
    if found is not None:
        name, value = found
        best = ""
        if f"final/best_{name}" in metrics:
            best = f" (best {metrics[f'final/best_{name}']:.4f} in round {metrics['final/best_round']:.0f})"
        lines.append(f"test {name} {value:.4f}{best}")
        for key in sorted(metrics):
            if key.startswith("final/rounds_to_"):
                target = key.removeprefix("final/rounds_to_")
                lines.append(f"{name} {target} reached in round {metrics[key]:.0f}")
    if "comm/total_bytes" in metrics:
        lines.append(f"{in_bytes(metrics['comm/total_bytes'])} sent over all links")
    run = f", MLflow run {result.run_id}" if result.run_id else ""
    lines += [f"results in {out} (cell {result.cell_hash}{run})", f"browse them with: rayfl ui --out {out}"]
    return "\n".join(lines)
