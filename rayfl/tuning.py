"""Ray Tune as the scheduler of a sweep: one trial per cell, one process reused from trial to trial. The only
import of ray.tune.

Cells are known by the hash of their config and keep their own results and checkpoints (see rayfl.runs), so
Tune's snapshots are not used: a re-issued sweep looks at the folders and runs what is left. The driver alone
writes to MLflow and ends cells; a trial's process trains, checkpoints and sends each round's numbers.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray import cloudpickle, tune

from rayfl.actors.fleet import ENVIRONMENT
from rayfl.bookkeeping import Book
from rayfl.errors import RunFailed
from rayfl.trials import Work, failed

if TYPE_CHECKING:
    from rayfl.sweeps import Plan

MAX_DEATHS = 3
"""How often a cell goes on elsewhere after its process died. An exception is final at once."""
_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}


class Trial(tune.Trainable):
    """One cell after another in one process. ``config["cell"]`` is a hash; the cells themselves come once.

    It never raises: what breaks a cell is sent as its result, so that the process lives on for the next.
    """

    def setup(self, config: dict[str, Any], shared: bytes = b"", paths: Sequence[str] = ()) -> None:
        """Take up the first cell."""
        # The user's own modules must be found before anything that mentions them is unpacked.
        sys.path += [path for path in paths if path not in sys.path]
        os.environ.update(ENVIRONMENT)
        self._shared = shared
        self._cell: str = config["cell"]
        self._work: Work | None = None

    def step(self) -> dict[str, Any]:
        """Some rounds, at least one."""
        try:
            if self._work is None:
                out, pictured, cells = cloudpickle.loads(self._shared)
                self._work = Work(cells[self._cell], out, self._cell in pictured)
            report = self._work.advance()
        except Exception as failure:
            report = failed(failure, self._cell, self._work.experiment if self._work is not None else None)
        return {"report": report, "done": report.result is not None}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up the next cell."""
        self.cleanup()
        self._cell = new_config["cell"]
        return True

    def cleanup(self) -> None:
        """Let go of the fleet and the claim on the cell."""
        if self._work is not None:
            self._work.close()
            self._work = None


def run_trials(plan: "Plan", needs: Mapping[str, list[dict[str, float]]], book: Book) -> None:
    """Hand the cells to Tune and wait for the last."""
    scratch = plan.out / f".tune-{plan.sweep.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    shared: bytes = cloudpickle.dumps((plan.out, book.pictured, {key: plan.cells[key] for key in plan.todo}))
    paths = [os.path.abspath(path) for path in sys.path]
    trainable = tune.with_resources(
        tune.with_parameters(Trial, shared=shared, paths=paths),
        lambda config: tune.PlacementGroupFactory(needs[config["cell"]]),
    )
    try:
        with _environment(), _on_interrupt(book.interrupt):
            tune.run(
                trainable,
                config={"cell": tune.grid_search(plan.todo)},
                name="trials",
                storage_path=str(scratch),
                callbacks=[_Callback(book)],
                stop=_Stopper(book),
                max_failures=MAX_DEATHS,
                max_concurrent_trials=plan.limit,
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=0,
            )
    except tune.TuneError as error:
        raise RunFailed(f"Ray Tune gave up: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if book.interrupted:
        raise KeyboardInterrupt


class _Callback(tune.Callback):
    """Tells the book what happens."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._book.tick()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._book.take(trial.config["cell"], result.pop("report"))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._book.restart(trial.config["cell"])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._book.give_up(trial.config["cell"], MAX_DEATHS + 1)


class _Stopper(tune.Stopper):
    """Ends the sweep when it was interrupted."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._book.interrupted


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Tune as a quiet scheduler, for as long as it runs."""
    before = {name: os.environ.get(name) for name in _TUNE}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(_TUNE)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _on_interrupt(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C ends the sweep in order, however often it comes: an exception in the middle of Tune's work
    would leave its processes, and what they reserve, behind. SIGTERM is the way to insist."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        tell()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """Ray and Tune put handlers of their own in place of the caller's."""
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
