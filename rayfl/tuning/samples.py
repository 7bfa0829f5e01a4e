"""The samples of a search, handed to Tune as they are drawn."""

import functools
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from rayfl.machines import Need
from rayfl.search.samples import Samples
from rayfl.search.trial import Trial
from rayfl.search.work import SampleWork
from rayfl.trials import Step
from rayfl.tuning.deaths import reason
from rayfl.tuning.quiet import MAX_DEATHS, StopAll, run
from rayfl.tuning.schedulers import PAUSING, make_scheduler, show_earlier
from rayfl.tuning.trial import Job, trainable


def run_samples(samples: Samples, first: Trial, need: Callable[[Trial], list[Need]], limit: int) -> None:
    """Run the trials of a search, ``limit`` at once, until there are no more or it is over.

    ``need`` are the bundles that a trial reserves.
    """
    search = samples.search
    scheduler = make_scheduler(search, samples.configs(first)[0].rounds)
    show_earlier(scheduler, search, samples)
    # A trial that is paused counts among those at once, so a scheduler that pauses must have no limit.
    limited = {} if search.scheduler in PAUSING else {"max_concurrent_trials": limit}
    run(
        trainable(),
        samples.cells.out / f".tune-{search.name}",
        samples.interrupt,
        search_alg=_Drawn(samples, first, need),
        scheduler=scheduler,
        num_samples=samples.todo,
        callbacks=[_Callback(samples)],
        stop=StopAll(lambda: bool(samples.over)),
        **limited,
    )


class _Drawn(Searcher):
    """Samples as the search draws them."""

    def __init__(
        self,
        samples: Samples,
        first: Trial,
        need: Callable[[Trial], list[Need]],
    ) -> None:
        super().__init__()
        self._samples, self._first, self._need = samples, [first], need
        self._numbers: dict[str, int] = {}

    def suggest(self, trial_id: str) -> Any:
        """The settings of the next trial."""
        trial = self._first.pop() if self._first else self._samples.next()
        if trial is None:
            return Searcher.FINISHED
        samples, search = self._samples, self._samples.search
        configs = samples.configs(trial)
        cells = [config.cell_hash for config in configs]
        assert samples.book is not None
        pictured = samples.book.choose_pictures(cells)
        judged = search.scheduler != "none"
        out = samples.cells.out
        start = functools.partial(SampleWork, configs, out, pictured, search.metric, judged)
        self._numbers[trial_id] = trial.number
        return {"job": Job.of(str(trial.number), cells[0], self._need(trial), start)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """A trial is through or was stopped. Of an ``error`` the callback knows more."""
        if not error:
            self._samples.ended(self._numbers[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """What was drawn is on disk already."""

    def restore(self, checkpoint_path: str) -> None:
        """It is read from there."""


class _Callback(tune.Callback):
    """Tells the search what happens."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._samples.tick()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        step: Step = result.pop("step")
        self._samples.took(int(trial.config["job"].key), step)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._samples.restarted(int(trial.config["job"].key), reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        why = f"{reason(trial)}, {MAX_DEATHS + 1} times in all"
        self._samples.ended(int(trial.config["job"].key), why)
