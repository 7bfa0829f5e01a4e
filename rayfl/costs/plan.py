"""From a config to the federation without content that has its traffic."""

import functools
from dataclasses import dataclass

import numpy as np

from rayfl import algorithms, models
from rayfl.config import ExperimentConfig
from rayfl.costs.blocks import HollowModel
from rayfl.costs.holdings import holdings
from rayfl.costs.phantom import HollowSource, phantom
from rayfl.errors import UserError
from rayfl.host import Blueprint, Facts
from rayfl.models.zoo import assemble


@dataclass(frozen=True, eq=False)
class Plan:
    """What is estimated."""

    blueprint: Blueprint
    """Without content: for a ``PhantomFleet``."""
    source: HollowSource
    from_counts: bool
    """Whether client sizes come from class counts, not from the dataset itself."""


def make_plan(config: ExperimentConfig) -> Plan:
    """Lay down what ``rayfl.experiment.make_blueprint`` would, without data, weights or storage."""
    method = algorithms.find(config.algorithm.name)
    held = holdings(config.data, config.seed)
    shape, num_classes = held.train.shape, held.train.num_classes
    bfloat16 = config.train.dtype == "bfloat16"
    model = HollowModel(functools.partial(assemble, config.model, shape, num_classes), bfloat16)
    whole = model()
    batch_norm = models.has_batch_norm(whole)
    if batch_norm and config.algorithm.batch_size == 1:
        raise UserError("batch_size=1 can't train BatchNorm, got model.norm=batch: use model.norm=group")
    facts = Facts(
        seed=config.seed,
        num_samples=tuple(len(rows) for rows in held.client_rows),
        client_edges=held.client_edges,
        num_edges=config.data.num_edges,
        num_classes=num_classes,
        batch_norm=batch_norm,
        task=held.task,
    )
    nothing = np.empty(0, dtype=np.int64)
    blueprint = Blueprint(
        algorithm=method,
        config=config.algorithm,
        facts=facts,
        model=model,
        train=held.train,
        test=held.test,
        client_rows=held.client_rows,
        client_test_rows=(nothing,) * facts.num_clients,
        validation_rows=held.validation_rows,
        bn=config.model.bn,
        dtype=config.train.dtype,
        augment=config.data.augment,
    )
    return Plan(phantom(blueprint, model, held.train, held.test), held.train, held.from_counts)
