"""From a config to the federation without content that has its traffic."""

import functools
from dataclasses import dataclass

import numpy as np

from rayfl import data
from rayfl.blueprint import extended, lay_down
from rayfl.config import ExperimentConfig
from rayfl.costs.blocks import HollowModel
from rayfl.costs.phantom import HollowSource, phantom
from rayfl.data.catalogue import damage, locate
from rayfl.data.config import DataConfig
from rayfl.data.outline import outline
from rayfl.errors import UserError
from rayfl.host import Blueprint
from rayfl.models.zoo import assemble


@dataclass(frozen=True, eq=False)
class Plan:
    """What is estimated."""

    blueprint: Blueprint
    """Without content: for a ``PhantomFleet``."""
    source: HollowSource
    """The training split."""
    from_counts: bool
    """Whether client sizes come from class counts, not from the dataset itself."""


def make_plan(config: ExperimentConfig) -> Plan:
    """Lay down what an experiment would, without pixels, weights or storage."""
    train, test, from_counts = splits(config.data)
    federated = data.federate(config.data, config.seed, train, test)
    bfloat16 = config.train.dtype == "bfloat16"
    factory = functools.partial(assemble, config.model, train.shape, train.num_classes)
    model = HollowModel(extended(config, train.shape, factory), bfloat16)
    return Plan(phantom(lay_down(config, federated, model)), train, from_counts)


def splits(config: DataConfig) -> tuple[HollowSource, HollowSource, bool]:
    """Both splits without pixels, and whether their labels are made up from class counts.

    They are where the dataset isn't prepared: it is neither prepared nor read for this. All laws but those
    by domain, group or file draw from class counts alone, so sizes are those of the real set, rows are not.
    Raises UserError where only the dataset itself can tell.
    """
    place = locate(config)
    views = 2 if config.augment == "supcon" else 1
    if damage(place) is None:
        train, test = data.open_dataset(config)
        return HollowSource(train, train.labels, views), HollowSource(test, test.labels), False
    if config.partition.kind in ("natural", "domain", "file") or config.edge_map == "domain":
        law = f"data.partition.kind={config.partition.kind}, data.edge_map={config.edge_map}"
        raise UserError(f"{law} goes by what dataset '{place.name}' holds: prepare it first: {place.command}")
    known = outline(config)
    labels = np.repeat(np.arange(len(known.class_counts), dtype=np.int64), known.class_counts)
    nothing = np.zeros(known.num_test, dtype=np.int64)
    return HollowSource(known, labels, views), HollowSource(known, nothing), True
