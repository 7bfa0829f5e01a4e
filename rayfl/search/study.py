"""Optuna's part: it draws samples and is told what they came to. The only import of optuna."""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from rayfl.search.config import SearchConfig
from rayfl.search.space import Domain, Sample, Space
from rayfl.search.trial import STOPPED, Outcome
from rayfl.seeding import derive

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Asked

Direction = Literal["maximize", "minimize"]


class Study:
    """Asked for samples, and told results in any order.

    What is drawn as sample n is a function of the search, n, and what is known by then: not of how often the
    search was interrupted.
    """

    def __init__(self, search: SearchConfig, space: Space) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._search, self.space = search, space
        self._directions: list[Direction] = [
            "maximize" if mode == "max" else "minimize" for mode in search.metric.values()
        ]
        self._study = optuna.create_study(directions=self._directions)
        self._asked: dict[int, Asked] = {}
        self._grid = space.points() if search.drawn_by == "grid" else None

    def ask(self, number: int, attempt: int = 0) -> Sample | None:
        """Sample ``number`` (which may be one that was drawn before: then ask with another ``attempt``), or
        None if a grid is through."""
        if self._grid is not None:
            return next(self._grid, None)
        self._study.sampler = self._sampler(derive(self._search.sampler_seed, "sampler", number, attempt))
        asked = self._study.ask()
        sample: Sample = {}
        for path, domain in self.space.domains.items():
            if self.space.active(path, sample):
                sample[path] = _suggested(asked, path, domain)
        self._asked[number] = asked
        return sample

    def forget(self, number: int) -> None:
        """A sample is not run after all."""
        from optuna.trial import TrialState

        if number in self._asked:
            self._study.tell(self._asked.pop(number), state=TrialState.FAIL)

    def resume(self, number: int, sample: Sample) -> None:
        """A sample of an earlier call is run on."""
        if self._grid is None:
            self._study.enqueue_trial({path: self._inner(path, value) for path, value in sample.items()})
            self.ask(number)

    def tell(self, number: int, sample: Sample, status: str, outcome: Outcome) -> None:
        """What a sample came to. One that was not asked for here is new to the study."""
        if self._grid is not None:
            return
        known = self._result(status, outcome)
        if number not in self._asked:
            self._study.add_trial(self._frozen(sample, **known))
            return
        asked = self._asked.pop(number)
        for step, value in known["intermediate_values"].items():
            asked.report(value, step)
        self._study.tell(asked, values=known["values"], state=known["state"])

    def learn(self, results: Iterable[tuple[Sample, list[float]]]) -> None:
        """Results from elsewhere: samples of this space with the mean of each metric."""
        from optuna.trial import TrialState

        for sample, values in results:
            self._study.add_trial(self._frozen(sample, state=TrialState.COMPLETE, values=values))

    def _result(self, status: str, outcome: Outcome) -> dict[str, Any]:
        from optuna.trial import TrialState

        curve = next(iter(outcome.curve.values())) if len(self._directions) == 1 else {}
        steps = {t: value for t, value in curve.items() if math.isfinite(value)}
        values = [outcome.mean(metric) for metric in self._search.metric]
        if status == "DIVERGED":
            worst = [-math.inf if direction == "maximize" else math.inf for direction in self._directions]
            return {"state": TrialState.COMPLETE, "values": worst, "intermediate_values": {}}
        if status == "FINISHED" and not any(map(math.isnan, values)):
            return {"state": TrialState.COMPLETE, "values": values, "intermediate_values": steps}
        if status == STOPPED and steps:
            return {"state": TrialState.PRUNED, "values": None, "intermediate_values": steps}
        return {"state": TrialState.FAIL, "values": None, "intermediate_values": {}}

    def _frozen(self, sample: Sample, **result: Any) -> "FrozenTrial":
        from optuna.trial import create_trial

        return create_trial(
            params={path: self._inner(path, value) for path, value in sample.items()},
            distributions={path: _distribution(self.space.domains[path]) for path in sample},
            **result,
        )

    def _inner(self, path: str, value: Any) -> Any:
        return json.dumps(value) if self.space.domains[path].kind == "choice" else value

    def _sampler(self, seed: int) -> "BaseSampler":
        from optuna import samplers

        # numpy's older generators, which Optuna uses, take 32 bits.
        seed %= 1 << 32
        if self._search.drawn_by == "random":
            return samplers.RandomSampler(seed)
        if self._search.drawn_by == "cmaes":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        return samplers.TPESampler(n_startup_trials=self._search.num_startup_trials, seed=seed)


def _distribution(domain: Domain) -> Any:
    from optuna import distributions

    if domain.kind == "choice":
        # As text, since values may be mappings or lists.
        return distributions.CategoricalDistribution([json.dumps(value) for value in domain.choices])
    if domain.kind == "randint":
        return distributions.IntDistribution(int(domain.low), int(domain.high))
    if domain.kind == "quniform":
        return distributions.FloatDistribution(domain.low, domain.values()[-1], step=domain.step)
    return distributions.FloatDistribution(domain.low, domain.high, log=domain.kind == "loguniform")


def _suggested(asked: "Asked", path: str, domain: Domain) -> Any:
    if domain.kind == "choice":
        return json.loads(asked.suggest_categorical(path, _distribution(domain).choices))
    if domain.kind == "randint":
        return asked.suggest_int(path, int(domain.low), int(domain.high))
    inner = _distribution(domain)
    return domain.nearest(asked.suggest_float(path, inner.low, inner.high, step=inner.step, log=inner.log))
