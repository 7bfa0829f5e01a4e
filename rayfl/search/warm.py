"""From an earlier search's runs in MLflow to results that the sampler knows from the start."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayfl.config import flatten
from rayfl.search.config import SearchConfig
from rayfl.search.space import Domain, Sample, Space, meets

if TYPE_CHECKING:
    from rayfl.tracking.searches import EarlierRun


def known_results(
    search: SearchConfig, space: Space, runs: Sequence["EarlierRun"]
) -> tuple[list[tuple[Sample, list[float]]], int]:
    """Samples of this space with the mean of each metric over seeds, and how many others were passed over.

    Runs that differ in nothing but the seed make one sample. A diverged one has the worst score there is.
    """
    from rayfl.tracking.searches import last_value

    groups: dict[str, list[EarlierRun]] = defaultdict(list)
    for run in runs:
        rest = {k: v for k, v in run.params.items() if k != "seed" and not k.startswith("tracking.")}
        groups[json.dumps(rest, sort_keys=True)].append(run)
    found, passed = [], 0
    for group in groups.values():
        sample = _sample(space, group[0].params)
        scores = []
        for metric, mode in search.metric.items():
            worst = -math.inf if mode == "max" else math.inf
            values = [worst if run.status == "DIVERGED" else last_value(run, metric) for run in group]
            if all(value is not None for value in values):
                scores.append(statistics.fmean(value for value in values if value is not None))
        if sample is None or len(scores) < len(search.metric):
            passed += 1
        else:
            found.append((sample, scores))
    return found, passed


def _sample(space: Space, params: Mapping[str, Any]) -> Sample | None:
    """The sample that a run's config stands for, if it is one of this space."""
    sample: Sample = {}
    for path, domain in space.domains.items():
        if meets(params, domain.when):
            value = _value(path, domain, params)
            if value is None:
                return None
            sample[path] = value[0]
    return sample if space.contains(sample) else None


def _value(path: str, domain: Domain, params: Mapping[str, Any]) -> list[Any] | None:
    """The value at a path, which may be a mapping of a choice; in a list, since it may be null."""
    for choice in domain.choices:
        leaves = flatten({path: choice})
        if all(key in params and params[key] == item for key, item in leaves.items()):
            return [choice]
    if path not in params or domain.kind == "choice":
        return None
    return [params[path]] if domain.contains(params[path]) else None
