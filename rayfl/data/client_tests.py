"""Who is scored on which test samples."""

import numpy as np

from rayfl.data.sampling import Ints, apportion, permutation
from rayfl.data.store import Dataset
from rayfl.seeding import numpy_generator


def client_tests(strata: Ints, counts: Ints, seed: int) -> tuple[Ints, ...]:
    """Test rows per client in the client's own mix of strata, for methods that personalise.

    A stratum is a class, or a class in a domain where the set has domains (:func:`strata`). Each stratum of
    the test set ``strata`` [M] is shared out in proportion to the clients' training samples of that stratum
    ``counts`` [n, S] (largest remainder, ties at random), so the splits are disjoint and a client's share of
    the test set is its share of the training set. A client that holds samples but came away empty, because
    clients outnumber test rows, gets one row of its most frequent stratum that the test set has, which it
    may share with others; one of whose strata the test set has none gets nothing.
    """
    rng = numpy_generator(seed, "client-test")
    num_clients, num_strata = counts.shape
    mine: list[list[Ints]] = [[] for _ in range(num_clients)]
    by_stratum = [np.flatnonzero(strata == k) for k in range(num_strata)]
    for k, rows in enumerate(by_stratum):
        if rows.size and counts[:, k].any():
            rows = rows[permutation(rng, len(rows))]
            sizes = apportion(len(rows), counts[:, k].astype(np.float64), rng)
            for i, piece in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
                mine[i].append(piece)
    result = []
    for i, pieces in enumerate(mine):
        chosen = np.sort(np.concatenate(pieces)) if pieces else np.empty(0, dtype=np.int64)
        present = [k for k in np.argsort(-counts[i], kind="stable") if counts[i, k] and by_stratum[k].size]
        if not chosen.size and present:
            rows = by_stratum[present[0]]
            chosen = rows[permutation(rng, len(rows))[:1]]
        chosen.flags.writeable = False
        result.append(chosen)
    return tuple(result)


def strata(train: Dataset, test: Dataset) -> tuple[Ints, Ints, int]:
    """The stratum of each sample of both splits, and how many there are: classes, or classes in domains."""
    if train.domains is None or test.domains is None:
        return train.labels, test.labels, train.num_classes
    trained = train.domains * train.num_classes + train.labels
    tested = test.domains * train.num_classes + test.labels
    return trained, tested, int(max(trained.max(), tested.max())) + 1
