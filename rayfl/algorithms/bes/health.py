"""BESplit's figures of a round: what clients count and why, who pairs, and what it does to label bias."""

from collections.abc import Iterable, Mapping

from rayfl.algorithms.bes.config import BESConfig
from rayfl.pictures import ByClient, Graph, Lines, Picture

BY_CLIENT = ("weight", "vacuity", "aleatoric", "epistemic")
BIAS = tuple(f"label_bias_{when}" for when in ("before", "after", "realised"))
SCORES = ("accuracy", "balanced_accuracy", "ece", "loss", "macro_f1")
"""Of auxiliary models, whatever the data."""
PICTURES: Mapping[str, Picture] = {
    "weights": ByClient("besplit/weight", "weight of each client in the averages"),
    "pairs": Graph("besplit/partner", "who paired with whom: rounds as partners"),
    "bias": Lines(
        {
            "label bias of server-side models": [f"besplit/{name}" for name in BIAS],
            "share of batches with a partner": ["besplit/paired_share"],
            "mean fraction exchanged": ["besplit/mean_rho"],
        }
    ),
}


def health(of_clients: Mapping[str, Mapping[int, float]], of_round: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a round from the main server's report."""
    row = {
        f"besplit/{name}/client{client}": value
        for name, values in of_clients.items()
        for client, value in values.items()
    }
    return {**row, **{f"besplit/{name}": value for name, value in of_round.items()}}


def health_names(config: BESConfig, num_clients: int, rounds: int) -> Iterable[str]:
    """What a run is sure to report of rounds in which all clients take part."""
    everybody = dict.fromkeys(range(num_clients), 0.0)
    of_round = ["num_pairs", "paired_share", *(BIAS if rounds > 1 else ())]
    found = [*health(dict.fromkeys(BY_CLIENT, everybody), dict.fromkeys(of_round, 0.0))]
    where = {"both": ("local", "global")}.get(config.a_eval, (config.a_eval,)) if config.dtd.enabled else ()
    return [*found, *(f"auxiliary/{place}_{name}" for place in where for name in SCORES)]
