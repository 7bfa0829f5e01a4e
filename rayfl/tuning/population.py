"""The members of a population (pbt), handed to Tune all at once."""

import dataclasses
import functools
import random
from typing import Any

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from rayfl.machines import Need
from rayfl.search.members import MemberWork, member_folder, moved
from rayfl.search.population import Members
from rayfl.seeding import derive, numpy_generator
from rayfl.trials import Step
from rayfl.tuning.deaths import reason
from rayfl.tuning.quiet import MAX_DEATHS, StopAll, run
from rayfl.tuning.trial import Job, trainable

_KEPT = 4
"""Checkpoints of a member that Tune keeps for others to take over."""


def run_members(members: Members, need: list[Need]) -> None:
    """Run all members that have not ended, taking turns where not all fit, until the last ends or it is
    over. ``need`` are the bundles that each reserves."""
    search, jobs = members.search, []
    for trial in members.left:
        folder = member_folder(members.folder, trial.number)
        configs = search.configs(trial.sample)
        start = functools.partial(MemberWork, trial.number, configs, folder, search.metric)
        values = members.values[trial.number]
        jobs.append(Job.of(str(trial.number), members.keys(trial)[0], need, start, values=values))
    run(
        trainable(),
        members.cells.out / f".tune-{search.name}",
        members.interrupt,
        config={"job": tune.grid_search(jobs)},
        scheduler=_Population(members),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=_KEPT),
        callbacks=[_Callback(members)],
        stop=StopAll(lambda: bool(members.over)),
    )


class _Population(PopulationBasedTraining):
    """Tune's, which decides who takes over whose state and when; values move within their bounds."""

    def __init__(self, members: Members) -> None:
        search = members.search
        every = search.perturb_every or 2
        super().__init__(
            time_attr="round",
            metric="score",
            mode=next(iter(search.metric.values())),
            perturbation_interval=every,
            # After an interruption the first moment is the next regular one, not the first report.
            burn_in_period=(members.rounds_done // every + 1) * every,
            quantile_fraction=search.quantile or 0.25,
            custom_explore_fn=self._explore,
            log_config=False,
        )
        self._members = members
        self._moving: tuple[Job, int]

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        """Judge a member; it may take over another's state at once."""
        job: Job = trial.config["job"]
        self._moving = job, int(result["round"])
        # Tune chooses whose state is taken by Python's own generator, which the search leaves as it was.
        random.seed(derive(self._members.search.sampler_seed, "pbt", int(job.key), int(result["round"])))
        return super().on_trial_result(tune_controller, trial, result)

    def _explore(self, config: dict[str, Any]) -> dict[str, Any]:
        """The settings of a member that takes over from the one with ``config``."""
        job, t = self._moving
        source: Job = config["job"]
        rng = numpy_generator(self._members.search.sampler_seed, "move", int(job.key), t)
        values = moved(self._members.search, source.settings["values"], rng)
        self._members.took_over(int(job.key), int(source.key), t, values)
        return {"job": dataclasses.replace(job, settings={"values": values})}


class _Callback(tune.Callback):
    """Tells the population what happens."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._members.tick()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        step: Step = result.pop("step")
        self._members.took(int(trial.config["job"].key), step)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._members.ended(int(trial.config["job"].key))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._members.restarted(int(trial.config["job"].key), reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        why = f"{reason(trial)}, {MAX_DEATHS + 1} times in all"
        self._members.ended(int(trial.config["job"].key), why)
