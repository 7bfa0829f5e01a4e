"""Which trials are best, and the best as presets that ``rayfl run`` takes."""

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayfl import checkpoint
from rayfl.config import ExperimentConfig
from rayfl.loading.experiments import dump
from rayfl.search.config import SearchConfig
from rayfl.search.trial import Outcome, Trial, score_text, value_text


def ranks(search: SearchConfig, finished: Mapping[int, Outcome]) -> dict[int, int]:
    """The place of each trial that ran to its end, from 1; equal scores share one.

    With several metrics, 1 is the Pareto front, 2 the front without those, and so on.
    """
    points = {number: _minimised(search, result) for number, result in finished.items()}
    left = {number: point for number, point in points.items() if not any(map(math.isnan, point))}
    found: dict[int, int] = {}
    place = 1
    while left:
        front = [
            n for n, point in left.items() if not any(_dominates(other, point) for other in left.values())
        ]
        found.update(dict.fromkeys(front, place))
        # With one metric, a place is what it is in sports: after two firsts comes the third.
        place += len(front) if len(search.metric) == 1 else 1
        left = {number: point for number, point in left.items() if number not in front}
    return found


def _minimised(search: SearchConfig, result: Outcome) -> tuple[float, ...]:
    return tuple(-result.mean(m) if mode == "max" else result.mean(m) for m, mode in search.metric.items())


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def write_presets(
    search: SearchConfig,
    folder: Path,
    best: Sequence[tuple[Trial, Outcome, ExperimentConfig]],
) -> list[Path]:
    """Write ``best.yaml``, or with several metrics ``pareto-<i>.yaml`` each; older ones go."""
    written = []
    for number, (trial, result, config) in enumerate(best, start=1):
        name = "best.yaml" if len(search.metric) == 1 else f"pareto-{number}.yaml"
        text = f"{_header(search, trial, result, config, folder / name)}{_without_tracking(config)}"
        checkpoint.write_whole(folder / name, text.encode())
        written.append(folder / name)
    for path in (*folder.glob("best.yaml"), *folder.glob("pareto-*.yaml")):
        if path not in written:
            path.unlink()
    return written


def _header(search: SearchConfig, trial: Trial, result: Outcome, config: ExperimentConfig, path: Path) -> str:
    what = "The best" if len(search.metric) == 1 else "One of the Pareto front"
    seeds = ", ".join(map(str, search.seeds))
    scores = "; ".join(f"{m} {score_text(result.mean(m), result.std(m))}" for m in search.metric)
    lines = [
        f"{what} of the search '{search.name}': trial {trial.number}, {datetime.date.today().isoformat()}.",
        f"{scores} after {result.rounds} rounds, over seeds {seeds}.",
        *(f"  {key}: {value_text(value)}" for key, value in values_of(search, trial, config).items()),
    ]
    if search.scheduler == "pbt":
        lines.append("These are its last values: on the way it had others, and other members' states.")
    lines.append(f"rayfl run {path.name}")
    return "".join(f"# {line}\n" for line in lines)


def values_of(search: SearchConfig, trial: Trial, config: ExperimentConfig) -> dict[str, object]:
    """The searched values of a trial: for a member of a population those that it has now."""
    if search.scheduler != "pbt":
        return dict(trial.sample)
    return {path: getattr(config.algorithm, path.removeprefix("algorithm.")) for path in trial.sample}


def _without_tracking(config: ExperimentConfig) -> str:
    text = dump(config)
    return text[: text.index("tracking:")]
