"""The four laws called "Dirichlet", and what is built of them: counts of each class for each client."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rayfl.data.config import Scheme
from rayfl.data.sampling import Floats, Ints, cut, even, log_gamma, permutation, shares


def dirichlet(
    rng: np.random.Generator,
    class_sizes: Ints,
    num_clients: int,
    scheme: Scheme,
    alpha: float,
    members: Ints | None = None,
) -> Ints:
    """Counts [n, K] by one of the four laws; ``members`` [n] makes each client stand for so many."""
    total = int(class_sizes.sum())
    if scheme in ("niid_bench", "per_class"):
        return per_class(rng, class_sizes, num_clients, alpha, scheme == "niid_bench", members)
    if total == 0:
        return np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    concentration = np.full(len(class_sizes), alpha)
    if scheme == "hsu":
        concentration = alpha * class_sizes / total
    return per_client(rng, class_sizes, num_clients, concentration, members)


def two_level(
    rng: np.random.Generator,
    class_sizes: Ints,
    members: Sequence[int],
    scheme: Scheme,
    alpha_edge: float,
    alpha: float,
) -> Ints:
    """Counts [n, K]: the law with ``alpha_edge`` over edges, then with ``alpha`` over each edge's clients.

    Edge e serves the next ``members[e]`` clients, and its fair share of the samples is theirs.
    """
    edges = dirichlet(rng, class_sizes, len(members), scheme, alpha_edge, np.asarray(members))
    return np.concatenate(
        [dirichlet(rng, mine, n, scheme, alpha) for mine, n in zip(edges, members, strict=True)]
    )


def per_class(
    rng: np.random.Generator,
    class_sizes: Ints,
    num_clients: int,
    alpha: float,
    balance: bool,
    members: Ints | None = None,
) -> Ints:
    """Counts [n, K]: each class is cut by its own Dir_n(alpha).

    ``balance`` gives nothing of a class to clients that hold N/n samples or more (Li et al. 2022,
    arXiv:2102.02079, and its root Yurochkin et al. 2019, arXiv:1905.12022).
    """
    log_weights = log_gamma(rng, np.full((len(class_sizes), num_clients), alpha))
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    held = np.zeros(num_clients, dtype=np.int64)
    behind = np.ones(num_clients, dtype=np.int64) if members is None else members
    fair = class_sizes.sum() * behind / behind.sum()
    for k, size in enumerate(class_sizes):
        if size == 0:
            continue
        counts[:, k] = cut(int(size), shares(log_weights[k], held < fair if balance else None))
        held += counts[:, k]
    return counts


def per_client(
    rng: np.random.Generator,
    class_sizes: Ints,
    num_clients: int,
    alpha: Floats,
    members: Ints | None = None,
) -> Ints:
    """Counts [n, K]: each client draws its own Dir_K(alpha) and fills an equal size from it.

    Clients draw without replacement, one sample at a time in random order (Acar et al. 2021,
    arXiv:2111.04263); a class that has run out is left out and the rest of the client's weights
    renormalised. ``alpha`` has one value per class [K]: equal for FedDyn's form, alpha times the prior for
    that of Hsu et al. 2019 (arXiv:1909.06335).

    Weights are renormalised however small they are. Where code floors them at 1e-12 or deals out what is
    left once they underflow, a client whose class has run out gets some of all the others, which shows below
    alpha 0.01 per class: with 100 clients and 10 classes 4.8 classes a client at hsu alpha 0.05, here 3.2.
    """
    num_classes, total = len(class_sizes), int(class_sizes.sum())
    log_weights = log_gamma(rng, np.broadcast_to(alpha, (num_clients, num_classes)).astype(np.float64))
    sizes = even(total, num_clients)
    if members is not None:
        starts = np.cumsum(members) - members
        sizes = np.add.reduceat(even(total, int(members.sum())), starts)
    turns = np.repeat(np.arange(num_clients), sizes)[permutation(rng, total)]
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
