"""Tune as a quiet scheduler: no output, no logger, no signal handler of its own."""

import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ray import tune

from rayfl.actors.lifeline import Lifeline
from rayfl.errors import RunFailed

MAX_DEATHS = 3
"""How often a trial goes on elsewhere after its process died. An exception is final at once."""
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}


def run(
    trainable: Any,
    scratch: Path,
    interrupt: Callable[[], None],
    callbacks: Sequence[tune.Callback],
    **options: Any,
) -> None:
    """Run Tune to its end with ``scratch`` as its folder, gone afterwards. Ctrl-C tells ``interrupt``."""
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with _environment(), _on_interrupt(interrupt):
            tune.run(
                trainable,
                name="trials",
                storage_path=str(scratch),
                max_failures=MAX_DEATHS,
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=0,
                callbacks=[Watch(), *callbacks],
                **options,
            )
    except tune.TuneError as error:
        raise RunFailed(f"Ray Tune gave up: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Watch(tune.Callback):
    """Ends everything where Ray is gone: Tune would wait for it."""

    def __init__(self) -> None:
        self._lifeline = Lifeline("issue the same command again to go on")

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._lifeline.check()


class StopAll(tune.Stopper):
    """Ends everything once somebody says so."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over

    def __reduce__(self) -> Any:
        # Tune packs it into snapshots, which nobody reads.
        return StopAll, (bool,)

    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._over()


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(_ENVIRONMENT)
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
    """Ctrl-C ends everything in order, however often it comes: an exception in the middle of Tune's work
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
