"""What a search is: the question, the values to draw from, who draws them, and when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen

from rayfl.config import ExperimentConfig
from rayfl.search.space import Domain, Sample, Space

Mode = Literal["max", "min"]
MOST_TRIALS = 1000
"""Where only hours are given."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """A search over hyper-parameters. A trial is preset < set < its sample < overrides, for each seed."""

    name: Annotated[str, MinLen(1)]
    """What the search is called."""
    preset: str | None = None
    """The preset or file that every trial starts from; default: rayfl's defaults."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the preset, read once."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all trials."""
    search: Mapping[str, Domain] = field(default_factory=dict)
    """The values of each path; a path comes after those that its condition names."""
    metric: Mapping[str, Mode] = field(default_factory=dict)
    """What is best, and whether that is the largest or the smallest; several ask for a Pareto front."""
    seeds: Annotated[tuple[int, ...], MinLen(1)] = (0,)
    """A trial runs once with each, side by side; its score is the mean."""
    trials: Annotated[int, Ge(1)] | None = None
    """Most trials, those of earlier calls included; default: 20, or with ``hours`` 1000."""
    hours: Annotated[float, Gt(0)] | None = None
    """Most time that one call takes; trials under way then keep their checkpoints."""
    sampler: Literal["tpe", "cmaes", "random", "grid"] | None = None
    """Who draws samples; default: tpe, with pbt random."""
    sampler_seed: int = 0
    """Root of the sampler's randomness."""
    startup_trials: Annotated[int, Ge(1)] | None = None
    """Random samples before tpe learns from results; default: a quarter of the trials, 4 to 10."""
    scheduler: Literal["none", "asha", "hyperband", "pbt", "median"] = "none"
    """Who stops trials early, or (pbt) moves them."""
    grace_rounds: Annotated[int, Ge(1)] | None = None
    """Rounds that every trial gets (asha, median); default: 1."""
    reduction_factor: Annotated[float, Gt(1)] | None = None
    """Of so many trials one goes on at each rung (asha, hyperband); default: 3."""
    perturb_every: Annotated[int, Ge(1)] | None = None
    """Rounds between the moments when a poor member takes over a good one's state (pbt); default: 2."""
    quantile: Annotated[float, Gt(0), Le(0.5)] | None = None
    """Share of the members that count as poor, and as good (pbt); default: 0.25."""
    resample: Annotated[float, Ge(0), Le(1)] | None = None
    """Probability that a moved value is drawn anew instead of nudged by a fifth (pbt); default: 0.25."""
    warm_start: str | None = None
    """An earlier search or sweep, or an MLflow experiment, in the same store, whose results the sampler
    knows from the start."""
    max_concurrent: Annotated[int, Ge(1)] | None = None
    """Most trials at once; default: as many as fit."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """The user's own settings of all trials, which win over everything else."""

    @property
    def num_trials(self) -> int:
        """Most trials."""
        return self.trials or (20 if self.hours is None else MOST_TRIALS)

    @property
    def num_startup_trials(self) -> int:
        """Random samples before tpe learns from results."""
        return self.startup_trials or min(10, max(4, self.num_trials // 4))

    @property
    def drawn_by(self) -> str:
        """Who draws samples."""
        return self.sampler or ("random" if self.scheduler == "pbt" else "tpe")

    def configs(self, sample: Sample) -> tuple[ExperimentConfig, ...]:
        """The experiments of a sample, one for each seed. Raises UserError where there is none such."""
        from rayfl.loading.searches import search_cells

        return search_cells(self, sample)

    def space(self) -> Space:
        """The paths with what their conditions may go by."""
        from rayfl.config import flatten

        return Space(self.search, flatten(self.configs({})[0].to_dict()))
