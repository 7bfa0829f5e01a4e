"""The cells of a sweep, handed to Tune all at once."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray import tune

from rayfl.bookkeeping import Book
from rayfl.machines import Need
from rayfl.trials import CellWork, Step
from rayfl.tuning.deaths import reason
from rayfl.tuning.quiet import MAX_DEATHS, StopAll, run
from rayfl.tuning.trial import Job, trainable

if TYPE_CHECKING:
    from rayfl.sweeps import Plan


def run_trials(plan: "Plan", needs: Mapping[str, list[Need]], book: Book) -> None:
    """Hand the cells to Tune and wait for the last."""
    book.adopt(plan.ended)
    pictured = book.choose_pictures(plan.todo)
    jobs = [
        Job.of(key, key, needs[key], functools.partial(CellWork, plan.cells[key], plan.out, key in pictured))
        for key in plan.todo
    ]
    run(
        trainable(),
        plan.out / f".tune-{plan.sweep.name}",
        book.interrupt,
        config={"job": tune.grid_search(jobs)},
        callbacks=[_Callback(book)],
        stop=StopAll(lambda: book.interrupted),
        max_concurrent_trials=plan.limit,
    )
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
        step: Step = result.pop("step")
        for key, report in step.reports.items():
            self._book.take(key, report)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._book.restart(trial.config["job"].key, reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._book.give_up(trial.config["job"].key, f"{reason(trial)}, {MAX_DEATHS + 1} times in all")
