"""Who would hold which rows, known from a prepared dataset or from nothing but its class counts."""

from dataclasses import dataclass

import numpy as np

from rayfl import data
from rayfl.costs.phantom import HollowSource
from rayfl.data.catalogue import damage, locate
from rayfl.data.config import DataConfig
from rayfl.data.edge_map import blocks, edge_map
from rayfl.data.outline import outline
from rayfl.data.sampling import stratified
from rayfl.data.statistics import tally
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator
from rayfl.training import Rows


@dataclass(frozen=True, eq=False)
class Holdings:
    """A dataset without pixels, divided over clients and edges."""

    train: HollowSource
    test: HollowSource
    task: str
    client_rows: tuple[Rows, ...]
    client_edges: tuple[int, ...]
    validation_rows: Rows
    from_counts: bool
    """Whether labels were made up from class counts: sizes are those of the real set, rows are not."""


def holdings(config: DataConfig, seed: int) -> Holdings:
    """The division of a prepared dataset, or one of as many made-up labels; prepares and reads no images.

    All laws but those by domain, group or file draw from class counts alone, so both have the same sizes.
    Raises UserError where only the dataset itself can tell.
    """
    place = locate(config)
    if damage(place) is None:
        return _prepared(config, seed)
    if config.partition.kind in ("natural", "domain", "file") or config.edge_map == "domain":
        law = f"data.partition.kind={config.partition.kind}, data.edge_map={config.edge_map}"
        raise UserError(f"{law} goes by what dataset '{place.name}' holds: prepare it first: {place.command}")
    known = outline(config)
    num_classes = len(known.class_counts)
    labels = np.repeat(np.arange(num_classes, dtype=np.int64), known.class_counts)
    validation = stratified(
        numpy_generator(seed, "validation"), labels, round(config.val_fraction * len(labels))
    )
    kept = np.setdiff1d(np.arange(len(labels)), validation, assume_unique=True)
    given = data.partition(
        labels[kept], num_classes, config.partition, config.num_clients, seed, num_edges=config.num_edges
    )
    rows = tuple(kept[chosen] for chosen in given.indices)
    edges = tuple(blocks(config.num_clients, config.num_edges).tolist())
    if config.edge_map != "blocks":
        counts = tally(rows, labels, num_classes)
        edges = edge_map(config.edge_map, config.num_edges, seed, counts, None)
    masks, views = known.task == "segmentation", _views(config)
    return Holdings(
        train=HollowSource(labels, known.shape, num_classes, masks, views),
        test=HollowSource(np.zeros(known.num_test, dtype=np.int64), known.shape, num_classes, masks),
        task=known.task,
        client_rows=rows,
        client_edges=edges,
        validation_rows=validation,
        from_counts=True,
    )


def _prepared(config: DataConfig, seed: int) -> Holdings:
    federated = data.load(config, seed)
    train, test = federated.train, federated.test
    masks = train.task == "segmentation"
    return Holdings(
        train=HollowSource(train.labels, train.shape, train.num_classes, masks, _views(config)),
        test=HollowSource(test.labels, test.shape, test.num_classes, masks),
        task=train.task,
        client_rows=federated.client_indices,
        client_edges=federated.client_edges,
        validation_rows=federated.validation_indices,
        from_counts=False,
    )


def _views(config: DataConfig) -> int:
    return 2 if config.augment == "supcon" else 1
