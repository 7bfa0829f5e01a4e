"""What the commands show of a run: progress while it goes on, a summary at its end."""

import sys
import time
from typing import Any

from rayfl import waiting
from rayfl.experiment import Experiment, Observer, Result
from rayfl.tasks import headline
from rayfl.text import counted, in_bytes, in_time, lasted


class RunProgress(Observer):
    """Round, accuracy, bytes and time left on stderr: a live line with the seconds per round on a terminal,
    else a line per evaluation."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._headline = ""

    def on_start(self, experiment: Experiment) -> None:
        waiting.hide()
        self._first, self._began = experiment.round, time.monotonic()
        if experiment.history:
            print(f"going on after round {experiment.round}", file=sys.stderr, flush=True)
        if experiment.fleet.whereabouts:
            print(experiment.fleet.whereabouts, file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("round {task.completed}/{task.total}"),
                BarColumn(bar_width=12),
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
        each = (time.monotonic() - self._began) / max(done - self._first, 1)
        if self._first < done < rounds:
            parts.append(f"{in_time(each * (rounds - done))} left")
        if self._bar is not None:
            pace = [f"{lasted(each)}/round"] if done > self._first else []
            self._bar.update(self._task, completed=done, description="  ".join([*parts, *pace]))
        elif found is not None:
            print(f"round {done}/{rounds}  {'  '.join(parts)}", file=sys.stderr, flush=True)

    def on_end(self, experiment: Experiment, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def summary(result: Result, out: str, ended_before: bool) -> str:
    """A run's outcome in a few lines; ``ended_before`` if an earlier command ran it."""
    metrics = result.metrics
    lines = [f"{result.status} after {counted(result.rounds, 'round')}"]
    if ended_before:
        lines[0] += ", in an earlier run: nothing was run now (without --resume it starts anew)"
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
