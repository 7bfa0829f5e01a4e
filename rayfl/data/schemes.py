"""The laws: how many samples of each class each client gets.

Which samples these are is drawn afterwards: where a law leaves a client too small only its counts are drawn
again, so a try costs a millisecond.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rayfl.data.sampling import Floats, Ints, cut, even, log_gamma, normals, permutation, shares, subset

SCHEMES: dict[str, str] = {
    "iid": "a random cut into equal sizes (FedAvg, every framework)",
    "dirichlet/niid_bench": "per class Dir(alpha) over clients, none for clients that already hold N/n "
    "(NIID-Bench, MOON, FedML, FedLab hetero_dir, PFLlib, FedMA)",
    "dirichlet/per_class": "per class Dir(alpha) over clients, sizes free (Flower's default, FL-bench, "
    "MergeSFL)",
    "dirichlet/per_client": "per client Dir(alpha) over classes, equal sizes "
    "(FedDyn, FedLab client_inner_dirichlet, pfl, FSL-SAGE, Flower InnerDirichlet)",
    "dirichlet/hsu": "per client Dir(alpha * prior) over classes, equal sizes; its alpha is num_classes "
    "times that of "
    "per_client (Hsu et al. 2019, FLGo, TensorFlow Federated)",
    "shards": "sorted by label, cut into shards, a few random shards each (McMahan et al. 2017, FL-bench)",
    "pathological": "client i holds class i mod K and k-1 random others (NIID-Bench #label=k, PFLlib)",
    "quantity": "labels iid, sizes by Dir(alpha) or lognormal (NIID-Bench iid-diff-quantity, FedLab "
    "unbalance)",
    "file": "the clients written by save_partition",
}
"""Name -> what it does and which public code means it."""


def per_class(
    rng: np.random.Generator, class_sizes: Ints, num_clients: int, alpha: float, balance: bool
) -> Ints:
    """Counts [n, K]: each class is cut by its own Dir_n(alpha).

    ``balance`` gives nothing of a class to clients that hold N/n samples or more (Li et al. 2022,
    arXiv:2102.02079, and its root Yurochkin et al. 2019, arXiv:1905.12022).
    """
    log_weights = log_gamma(rng, np.full((len(class_sizes), num_clients), alpha))
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    held = np.zeros(num_clients, dtype=np.int64)
    fair = class_sizes.sum() / num_clients
    for k, size in enumerate(class_sizes):
        if size == 0:
            continue
        counts[:, k] = cut(int(size), shares(log_weights[k], held < fair if balance else None))
        held += counts[:, k]
    return counts


def per_client(rng: np.random.Generator, class_sizes: Ints, num_clients: int, alpha: Floats) -> Ints:
    """Counts [n, K]: each client draws its own Dir_K(alpha) and fills an equal size from it.

    Clients draw without replacement, one sample at a time in random order (Acar et al. 2021,
    arXiv:2111.04263); a class that has run out is left out and the rest of the client's weights
    renormalised. ``alpha`` has one value per class [K]: equal for FedDyn's form, alpha times the prior for
    that of Hsu et al. 2019 (arXiv:1909.06335).
    """
    num_classes, total = len(class_sizes), int(class_sizes.sum())
    log_weights = log_gamma(rng, np.broadcast_to(alpha, (num_clients, num_classes)).astype(np.float64))
    turns = np.repeat(np.arange(num_clients), even(total, num_clients))[permutation(rng, total)]
    left = class_sizes > 0
    drawn = _draw(rng, turns, log_weights, left)
    while (full := np.flatnonzero(np.bincount(drawn, minlength=num_classes) > class_sizes)).size:
        # The first turn that asks for a class which is gone: from there on that class is drawn again
        # without it.
        asked, k = min((int(np.flatnonzero(drawn == k)[class_sizes[k]]), int(k)) for k in full)
        left[k] = False
        again = asked + np.flatnonzero(drawn[asked:] == k)
        drawn[again] = _draw(rng, turns[again], log_weights, left)
    cells = np.bincount(turns * num_classes + drawn, minlength=num_clients * num_classes)
    return cells.reshape(num_clients, num_classes).astype(np.int64)


def _draw(rng: np.random.Generator, clients: Ints, log_weights: Floats, left: npt.NDArray[np.bool_]) -> Ints:
    """One class per entry of ``clients`` by its weights over the classes left, int64 [len(clients)]."""
    running = np.cumsum(shares(log_weights, np.broadcast_to(left, log_weights.shape)), axis=1)
    running /= running[:, -1:]
    # All clients' inverse cdfs in one search: client i owns the interval [i, i+1). 32 bits keep i + u below
    # i + 1.
    uniform = np.floor(rng.random(len(clients)) * 2**32) / 2**32
    table = (running + np.arange(len(running))[:, None]).ravel()
    found = np.searchsorted(table, clients + uniform, side="right")
    return np.asarray(found - clients * len(left), dtype=np.int64)


def pathological(
    rng: np.random.Generator, class_sizes: Ints, num_clients: int, classes_per_client: int
) -> Ints:
    """Counts [n, K]: client i holds class i mod K and random others; a class is shared evenly by its holders.

    Li et al. 2022 (arXiv:2102.02079), "#label = k". A class that nobody holds (few clients) stays out.
    """
    num_classes = len(class_sizes)
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    for i in range(num_clients):
        others = subset(rng, num_classes - 1, classes_per_client - 1)
        holds[i, i % num_classes] = True
        holds[i, others + (others >= i % num_classes)] = True
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    for k in range(num_classes):
        holders = np.flatnonzero(holds[:, k])
        if holders.size:
            counts[holders, k] = even(int(class_sizes[k]), holders.size)
    return counts


def shards(rng: np.random.Generator, labels: Ints, num_clients: int, shards_per_client: int) -> list[Ints]:
    """Rows per client: samples sorted by label, cut into shards, ``shards_per_client`` random ones each.

    McMahan et al. 2017 (arXiv:1602.05629). The sort is stable, else the shards would depend on numpy's
    build; shard sizes differ by at most one, so no sample is dropped.
    """
    order = np.argsort(labels, kind="stable")
    pieces = np.split(order, np.cumsum(even(len(labels), num_clients * shards_per_client))[:-1])
    hands = permutation(rng, len(pieces)).reshape(num_clients, shards_per_client)
    return [np.concatenate([pieces[j] for j in hand]) for hand in hands]


def quantity_dirichlet(rng: np.random.Generator, total: int, num_clients: int, alpha: float) -> Ints:
    """Sizes [n] by Dir_n(alpha) (Li et al. 2022, arXiv:2102.02079, "quantity skew")."""
    return cut(total, shares(log_gamma(rng, np.full(num_clients, alpha))))


def quantity_lognormal(rng: np.random.Generator, total: int, num_clients: int, sigma: float) -> Ints:
    """Sizes [n] in proportion to exp(sigma * z), z standard normal (FedDyn and FedLab, "unbalanced")."""
    return cut(total, shares(sigma * normals(rng, num_clients)))


def until_large(draw: Callable[[], Ints], min_size: int, max_tries: int) -> tuple[Ints, int]:
    """The first draw [n, ...] that gives each client ``min_size``, or the least bad; the tries it took."""
    best, smallest = draw(), -1
    for tries in range(1, max_tries + 1):
        counts = best if tries == 1 else draw()
        size = int(counts.reshape(len(counts), -1).sum(axis=1).min())
        if size > smallest:
            best, smallest = counts, size
        if size >= min_size:
            break
    return best, tries


def repair(counts: Ints, min_size: int) -> Ints:
    """Counts [n, K] that give each client ``min_size``: samples move one by one from the largest client.

    The giver gives of its most frequent class; ties go to the lowest number, so nothing is drawn.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for taker in np.flatnonzero(sizes < min_size):
        while sizes[taker] < min_size:
            giver = int(sizes.argmax())
            k = int(counts[giver].argmax())
            counts[giver, k] -= 1
            counts[taker, k] += 1
            sizes[giver] -= 1
            sizes[taker] += 1
    return counts
