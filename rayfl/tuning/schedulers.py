"""Who ends trials early: Tune's schedulers with a search's knobs."""

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule

from rayfl.search.config import SearchConfig
from rayfl.search.samples import Samples
from rayfl.search.trial import STOPPED, comparable

PAUSING = ("hyperband", "pbt")
"""Schedulers that put trials aside for others, so that more of them are alive than run."""


def make_scheduler(search: SearchConfig, rounds: int) -> Any:
    """The scheduler of a search, going by the ``score`` in round ``round`` of at most so many."""
    mode = next(iter(search.metric.values()))
    common: dict[str, Any] = {"time_attr": "round", "metric": "score", "mode": mode}
    if search.scheduler == "asha":
        return ASHAScheduler(
            **common,
            max_t=max(rounds, 1),
            grace_period=search.grace_rounds or 1,
            reduction_factor=search.reduction_factor or 3,
        )
    if search.scheduler == "hyperband":
        factor = search.reduction_factor or 3
        return HyperBandScheduler(**common, max_t=max(rounds, 1), reduction_factor=factor)
    if search.scheduler == "median":
        return MedianStoppingRule(**common, grace_period=search.grace_rounds or 1)
    return FIFOScheduler()


def show_earlier(scheduler: Any, search: SearchConfig, samples: Samples) -> None:
    """Let a scheduler compare new trials with those that ended in an earlier call, as far as it remembers."""
    if search.scheduler not in ("asha", "median"):
        return
    metric, mode = next(iter(search.metric.items()))
    nobody = SimpleNamespace(get_live_trials=list, get_trials=list)
    for trial in samples.record:
        if trial.status in ("FINISHED", STOPPED):
            earlier = _Earlier(f"earlier-{trial.number}")
            scheduler.on_trial_add(nobody, earlier)
            for t, value in samples.outcome(trial).curve[metric].items():
                scheduler.on_trial_result(nobody, earlier, {"round": t, "score": comparable(value, mode)})


class _Earlier(str):
    """A trial of an earlier call, as a scheduler knows it."""

    @property
    def trial_id(self) -> str:
        return str(self)
