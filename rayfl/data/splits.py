"""From a config and a seed to rows: who trains on what, is scored on what, belongs to which edge server."""

from dataclasses import dataclass

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.partition import Partition, partition
from rayfl.data.sampling import Ints, apportion, permutation, stratified
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
    """Per client: rows of ``test`` in its own class mix, ascending; see :func:`client_tests`."""
    client_edges: tuple[int, ...]
    """Per client: its edge server; contiguous blocks."""
    partition: Partition
    """The partition behind ``client_indices``; its rows are rows of ``train``."""


def load(config: DataConfig, seed: int) -> FederatedData:
    """Open the dataset, hold out validation rows, divide the rest over clients; pure in its arguments.

    With ``kind: file`` the file names rows of ``train``, and those that this seed holds out for validation
    are taken from their clients. Raises UserError where the request can't be met.
    """
    if not 0 <= config.val_fraction < 1:
        raise UserError(f"val_fraction must lie in [0, 1), got {config.val_fraction}: 0.1 is usual")
    train, test = open_dataset(config)
    total = len(train)
    validation = stratified(
        numpy_generator(seed, "validation"), train.labels, round(config.val_fraction * total)
    )
    if config.partition.kind == "file":
        given = partition(train.labels, train.num_classes, config.partition, config.num_clients, seed)
        rows = [np.setdiff1d(r, validation, assume_unique=True) for r in given.indices]
        if config.partition.min_size > 0 and min(map(len, rows)) == 0:
            raise UserError(
                "a client of the partition file holds validation rows only: set data.val_fraction=0 or "
                "the seed it "
                "was made with"
            )
    else:
        kept = np.setdiff1d(np.arange(total), validation, assume_unique=True)
        given = partition(train.labels[kept], train.num_classes, config.partition, config.num_clients, seed)
        rows = [kept[r] for r in given.indices]
    divided = Partition.of(rows, given.tries)
    counts = divided.statistics(train.labels, train.num_classes).counts
    return FederatedData(
        train=train,
        test=test,
        client_indices=divided.indices,
        validation_indices=validation,
        client_test_indices=client_tests(test.labels, counts, seed),
        client_edges=tuple(i * config.num_edges // config.num_clients for i in range(config.num_clients)),
        partition=divided,
    )


def client_tests(labels: Ints, counts: Ints, seed: int) -> tuple[Ints, ...]:
    """Test rows per client in the client's own class mix, for methods that personalise.

    Each class of the test set ``labels`` [M] is shared out in proportion to the clients' training samples
    of that class ``counts`` [n, K] (largest remainder, ties at random), so the splits are disjoint and a
    client's share of the test set is its share of the training set. A client that holds samples but came
    away empty, because clients outnumber test rows, gets one row of its most frequent class that the test
    set has, which it may share with others.
    """
    rng = numpy_generator(seed, "client-test")
    num_clients, num_classes = counts.shape
    mine: list[list[Ints]] = [[] for _ in range(num_clients)]
    by_class = [np.flatnonzero(labels == k) for k in range(num_classes)]
    for k, rows in enumerate(by_class):
        if rows.size and counts[:, k].any():
            rows = rows[permutation(rng, len(rows))]
            sizes = apportion(len(rows), counts[:, k].astype(np.float64), rng)
            for i, piece in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
                mine[i].append(piece)
    result = []
    for i, pieces in enumerate(mine):
        chosen = np.sort(np.concatenate(pieces)) if pieces else np.empty(0, dtype=np.int64)
        present = [k for k in np.argsort(-counts[i], kind="stable") if counts[i, k] and by_class[k].size]
        if not chosen.size and present:
            rows = by_class[present[0]]
            chosen = rows[permutation(rng, len(rows))[:1]]
        chosen.flags.writeable = False
        result.append(chosen)
    return tuple(result)
