"""From a config and a seed to rows: who trains on what, is scored on what, belongs to which edge server."""

from dataclasses import dataclass

import numpy as np

from rayfl.data.client_tests import client_tests, strata
from rayfl.data.config import DataConfig
from rayfl.data.divide import partition
from rayfl.data.edge_map import blocks, edge_map
from rayfl.data.partition import Partition
from rayfl.data.sampling import Ints, stratified
from rayfl.data.statistics import Statistics, measure, tally
from rayfl.data.store import Dataset, open_dataset
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A dataset divided over clients and edges. Pickles as paths and row numbers."""

    train: Dataset
    test: Dataset
    client_indices: tuple[Ints, ...]
    """Per client: rows of ``train``, ascending; disjoint."""
    validation_indices: Ints
    """Rows of ``train`` that no client holds, ascending."""
    client_test_indices: tuple[Ints, ...]
    """Per client: rows of ``test`` in its own mix of classes (and domains), ascending: ``client_tests``."""
    client_edges: tuple[int, ...]
    """Per client: its edge server."""
    partition: Partition
    """The partition behind ``client_indices``; its rows are rows of ``train``."""

    def statistics(self) -> Statistics:
        """Who holds what, by class, domain and edge server."""
        train = self.train
        return measure(
            self.client_indices,
            train.labels,
            train.num_classes,
            domains=train.domains,
            num_domains=len(train.domain_names),
            edges=self.client_edges,
        )


def load(config: DataConfig, seed: int) -> FederatedData:
    """Open the dataset, prepared first where it isn't yet, and divide it: see :func:`federate`."""
    return federate(config, seed, *open_dataset(config))


def federate(config: DataConfig, seed: int, train: Dataset, test: Dataset) -> FederatedData:
    """Hold out validation rows and divide the rest over clients; pure in its arguments.

    With ``kind: file`` the file names rows of ``train``, and those that this seed holds out for validation
    are taken from their clients. Raises UserError where the request can't be met.
    """
    if not 0 <= config.val_fraction < 1:
        raise UserError(f"data.val_fraction must lie in [0, 1), got {config.val_fraction}: 0.1 is usual")
    labels, num_classes = train.labels, train.num_classes
    validation = stratified(
        numpy_generator(seed, "validation"), labels, round(config.val_fraction * len(train))
    )
    from_file = config.partition.kind == "file"
    kept = np.arange(len(train))
    if not from_file:
        kept = np.setdiff1d(kept, validation, assume_unique=True)
    given = partition(
        labels[kept],
        num_classes,
        config.partition,
        config.num_clients,
        seed,
        domains=None if train.domains is None else train.domains[kept],
        groups=None if train.groups is None else train.groups[kept],
        num_edges=config.num_edges,
    )
    rows = [kept[r] for r in given.indices]
    if from_file:
        rows = [np.setdiff1d(r, validation, assume_unique=True) for r in rows]
        if config.partition.min_size > 0 and min(map(len, rows)) == 0:
            raise UserError(
                "a client of the partition file holds validation rows only: set data.val_fraction=0 or "
                "the seed it was made with"
            )
    divided = Partition.of(rows, given.tries, _edges(config, seed, given, rows, train))
    trained, tested, num_strata = strata(train, test)
    return FederatedData(
        train=train,
        test=test,
        client_indices=divided.indices,
        validation_indices=validation,
        client_test_indices=client_tests(tested, tally(rows, trained, num_strata), seed),
        client_edges=divided.edges or tuple(blocks(config.num_clients, config.num_edges).tolist()),
        partition=divided,
    )


def _edges(
    config: DataConfig, seed: int, given: Partition, rows: list[Ints], train: Dataset
) -> tuple[int, ...] | None:
    """The edge map where it is not blocks: the partition's own, or the one asked for."""
    if config.edge_map == "blocks":
        return given.edges
    if given.edges is not None:
        raise UserError(
            f"data.partition.kind={config.partition.kind} brings its own edge map, got "
            f"data.edge_map={config.edge_map}: set data.edge_map=blocks"
        )
    domains = None if train.domains is None else tally(rows, train.domains, int(train.domains.max()) + 1)
    counts = tally(rows, train.labels, train.num_classes)
    return edge_map(config.edge_map, config.num_edges, seed, counts, domains)
