"""Ctrl-C while rounds are running: the first ends with the round and keeps it, the second ends at once."""

import contextlib
import signal
import threading
from typing import Any

from rayfl.commands.command import say
from rayfl.experiment import Experiment, Observer, Result


class StopInOrder(Observer):
    """From the start of the rounds on, SIGINT and SIGTERM (a batch system's) ask for an end in order.

    Before it there is nothing to keep, and they mean what they meant.
    """

    def __init__(self) -> None:
        self.experiment: Experiment | None = None
        """Set once rounds are run."""
        self._before: dict[signal.Signals, Any] = {}

    def on_start(self, experiment: Experiment) -> None:
        self.experiment = experiment
        # As late as this, because Ray puts a handler of its own in place when it starts.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)

    def on_end(self, experiment: Experiment, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: object) -> None:
        assert self.experiment is not None
        if self.experiment.stop_requested:
            self.close()
            raise KeyboardInterrupt
        self.experiment.stop_requested = True
        running = self.experiment.status == "RUNNING"
        what = f"finishing round {self.experiment.round}" if running else "writing the results"
        # The signal may have come in the middle of another line.
        with contextlib.suppress(RuntimeError):
            say(f"{what}, press Ctrl-C again to stop at once")
