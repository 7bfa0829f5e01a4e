"""The names of what an evaluated round reports, before anything is trained."""

import torch

from rayfl import algorithms, data
from rayfl.blueprint import make_blueprint
from rayfl.config import ExperimentConfig
from rayfl.costs.empty import EmptyArithmetic
from rayfl.costs.estimate import count
from rayfl.costs.plan import make_plan
from rayfl.errors import UserError
from rayfl.metrics.classification import dangerous_classes
from rayfl.metrics.rows import of_global_model, of_personal_models
from rayfl.tasks import ClassScore, MaskScore, Score

ALWAYS = (
    "client/num_participants",
    "comm/total_bytes",
    "flops/client",
    "params/client",
    "wall/eval_s",
    "wall/round_s",
)
"""What every round reports whatever the method and the data."""
_ROUNDS = 4
"""Rounds tried for the links that a method uses: some are used every other round only."""


def reported(config: ExperimentConfig) -> list[str]:
    """The metrics of a round after the first, in alphabetical order.

    Evaluation is asked for the names that it gives to empty scores, traffic for those of rounds without
    content; a method that can't do without content has its ``comm/total_bytes`` only.
    """
    blueprint, federated = make_blueprint(config)
    own = blueprint.algorithm.reported(
        config.algorithm, blueprint.model(), blueprint.facts.num_clients, config.rounds
    )
    return sorted({*ALWAYS, *_evaluated(config, federated), *_traffic(config), *own})


def _evaluated(config: ExperimentConfig, federated: data.FederatedData) -> set[str]:
    test, dangerous = federated.test, dangerous_classes(federated.test, config.benign)
    on_test = _empty(test, len(test))
    if algorithms.find(config.algorithm.name).is_personal(config.algorithm) or config.model.bn == "local":
        own = {i: len(rows) for i, rows in enumerate(federated.client_test_indices)}
        scores = {i: (on_test, _empty(test, num_rows)) for i, num_rows in own.items()}
        return set(of_personal_models(scores, federated, dangerous)[0])
    on_held_out = _empty(test, len(federated.validation_indices))
    return set(of_global_model({0: (on_test, on_held_out)}, federated, dangerous)[0])


def _empty(dataset: data.Dataset, num_rows: int) -> Score:
    """The score of a model that says 0 for everything."""
    if dataset.task == "segmentation":
        pixels = torch.zeros(num_rows, max(dataset.num_classes - 1, 1), dtype=torch.int64)
        return MaskScore(loss=0.0, overlaps=pixels, predicted=pixels, actual=pixels)
    return ClassScore(
        loss=0.0,
        predictions=torch.zeros(num_rows, dtype=torch.int32),
        in_top5=torch.zeros(num_rows, dtype=torch.bool),
        confidences=torch.zeros(num_rows),
    )


def _traffic(config: ExperimentConfig) -> set[str]:
    try:
        plan = make_plan(config)
        with EmptyArithmetic():
            ledger = count(plan.blueprint, min(config.rounds, _ROUNDS))
    except UserError:
        return set()
    return {name for t in range(1, _ROUNDS + 1) for name in ledger.metrics(t)}
