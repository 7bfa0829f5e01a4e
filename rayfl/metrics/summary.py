"""What a table quotes of a whole run."""

from collections.abc import Mapping, Sequence

import numpy as np

from rayfl.tasks import headline

History = Sequence[Mapping[str, float]]


def final(history: History, targets: Sequence[float]) -> dict[str, float]:
    """``final/...``: what a table quotes. A target that was not reached has no entry.

    The names are those of the task's headline metric, here accuracy. ``last10_accuracy`` is the mean over
    the last ten evaluated rounds after round 0; the best round is chosen on the test set, so it is an
    optimistic number. Models that are scored beside have such a mean, called as their metric is
    (``last10_auxiliary_local_accuracy``). ``rounds_to``, ``bytes_to`` and ``time_to`` a target are those of
    the first evaluated round that reaches it.
    """
    scored = [(row, *found) for row in history if (found := headline(row)) is not None]
    scored = [entry for entry in scored if entry[0]["round"] > 0] or scored
    if not scored:
        return {}
    name, values = scored[0][1], [value for _, _, value in scored]
    best = int(np.argmax(values))
    result = {
        f"final/{name}": values[-1],
        f"final/last10_{name}": float(np.mean(values[-10:])),
        f"final/best_{name}": values[best],
        "final/best_round": float(scored[best][0]["round"]),
    }
    for key in scored[-1][0]:
        if key.endswith((f"/local_{name}", f"/global_{name}")):
            beside = [row[key] for row, _, _ in scored[-10:]]
            result[f"final/last10_{key.replace('/', '_')}"] = float(np.mean(beside))
    for target in targets:
        reached = next((row for row, _, value in scored if value >= target), None)
        if reached is not None:
            result[f"final/rounds_to_{target:g}"] = float(reached["round"])
            result[f"final/bytes_to_{target:g}"] = float(reached["comm/total_bytes"])
            result[f"final/time_to_{target:g}"] = training_time(history, reached["round"])
    return result


def training_time(history: History, until: float) -> float:
    """Seconds spent training up to some round, in all processes that took part in the run one after another.

    Evaluation, checkpoints and start-up don't count, nor do rounds that were lost and done again.
    """
    return float(sum(row["wall/round_s"] for row in history if 0 < row["round"] <= until))
