"""FedSGA's figures of a round: who cut where and why, and whether the mechanism is alive."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.interfaces import PROMPTS, Candidate
from rayfl.pictures import Lines

QUANTILES = (0.1, 0.5, 0.9)
HEALTH = Lines(
    {
        "sufficiency r: quantiles over clients": [f"fedsga/r_q{int(100 * q)}" for q in QUANTILES],
        "loss ratio p_1 / p_ref: quantiles": [f"fedsga/ratio_q{int(100 * q)}" for q in QUANTILES],
        "labels and calibration": ["fedsga/label_rate", "fedsga/estimator_accuracy"],
        "standard deviation of r": ["fedsga/r_std_within", "fedsga/r_std_between"],
        "largest share of a prompt": ["fedsga/max_alpha"],
    }
)
"""The signals by which to see that depths follow anything at all."""


def health(
    found: Mapping[str, Mapping[int, float]],
    of_clients: Mapping[int, tuple[float, int]],
    depths: Mapping[int, int],
    candidates: Sequence[Candidate],
) -> dict[str, float]:
    """Metrics of a round from the fed server's report.

    ``of_clients``: each participant's largest prompt share, and its bytes at the cut. ``depths``: the number
    of each client's candidate, from 1.
    """
    row: dict[str, float] = {}
    for name in ("r", "a", "delta", "q"):
        row.update({f"fedsga/{name}/client{client}": value for client, value in found[name].items()})
    row.update({f"fedsga/depth/client{client}": float(depths[client]) for client in of_clients})
    histogram, traffic = Counter[int](), Counter[int]()
    for client, (_, size) in of_clients.items():
        histogram[depths[client]] += 1
        traffic[depths[client]] += size
    for number, candidate in enumerate(candidates, start=1):
        row[f"fedsga/clients_at/{candidate.name}"] = float(histogram[number])
        row[f"fedsga/bytes_at/{candidate.name}"] = float(traffic[number])
    if found["r"]:
        values = np.array(list(found["r"].values()))
        row.update(_quantiles("r", values))
        row["fedsga/r_std_within"] = float(values.std())
        row["fedsga/r_std_between"] = float(np.std(list(found["r_mean"].values())))
    if found["label"]:
        row["fedsga/label_rate"] = float(np.mean(list(found["label"].values())))
        row["fedsga/estimator_accuracy"] = found["right"][0]
        row.update(_quantiles("ratio", np.array(list(found["ratio"].values()))))
    shares = [alpha for alpha, _ in of_clients.values() if alpha > 0]
    if shares:
        row["fedsga/max_alpha"] = max(shares)
    return row


def health_names(
    config: SGAConfig, candidates: Sequence[Candidate], num_clients: int, rounds: int
) -> Iterable[str]:
    """What :func:`health` calls the metrics of a run: those that it makes of a report on everybody."""
    everybody = dict.fromkeys(range(num_clients), 1.0)
    observed = everybody if config.adaptive else {}
    judged = everybody if any(map(config.calibrates, range(1, rounds + 1))) else {}
    found = dict.fromkeys(("r", "a", "delta", "q", "r_mean"), observed)
    found |= dict.fromkeys(("label", "ratio", "right"), judged)
    has_prompts = any(PROMPTS in candidate.blocks for candidate in candidates)
    of_clients = dict.fromkeys(everybody, (float(has_prompts), 0))
    return health(found, of_clients, dict.fromkeys(everybody, 1), candidates)


def _quantiles(name: str, values: "np.typing.NDArray[np.float64]") -> dict[str, float]:
    return {f"fedsga/{name}_q{int(100 * q)}": float(np.quantile(values, q)) for q in QUANTILES}
