"""The table of kinds, and the laws that are not Dirichlet's.

A law says how many samples of each class each client gets; which samples these are is drawn afterwards, so
that drawing again, where a client came out too small, costs a millisecond.
"""

import heapq

import numpy as np

from rayfl.data.config import PartitionConfig
from rayfl.data.sampling import (
    Ints,
    apportion,
    cut,
    even,
    log_gamma,
    normals,
    permutation,
    shares,
    subset,
)

SCHEMES: dict[str, str] = {
    "iid": "a random cut into equal sizes (FedAvg, every framework)",
    "dirichlet/niid_bench": "per class Dir(alpha) over clients, none for clients that already hold N/n "
    "(NIID-Bench, MOON, FedML, FedLab hetero_dir, PFLlib, FedMA)",
    "dirichlet/per_class": "per class Dir(alpha) over clients, sizes free (Flower's default, FL-bench, "
    "MergeSFL)",
    "dirichlet/per_client": "per client Dir(alpha) over classes, equal sizes "
    "(FedDyn, FedLab client_inner_dirichlet, pfl, FSL-SAGE, Flower InnerDirichlet)",
    "dirichlet/hsu": "per client Dir(alpha * prior) over classes, equal sizes; its alpha is num_classes "
    "times that of per_client (Hsu et al. 2019, FLGo, TensorFlow Federated)",
    "shards": "sorted by label, cut into shards, a few random shards each (McMahan et al. 2017, FL-bench)",
    "pathological": "client i holds class i mod K and k-1 random others (NIID-Bench #label=k, PFLlib)",
    "dominant": "a share dominant_ratio of client i is of class i mod K, the rest even over the others, "
    "equal sizes (MergeSFL and kin: p = 0.2 to 0.8)",
    "quantity": "labels iid, sizes by Dir(alpha) or lognormal (NIID-Bench iid-diff-quantity, FedLab "
    "unbalance)",
    "domain": "each client belongs to one domain, clients even over domains; within a domain iid or "
    "dirichlet by scheme and alpha (multi-domain studies: DomainNet, Office, FedSGA)",
    "natural": "one client per group or domain (natural_by); if there are more, they are dealt whole, in "
    "random order to whoever holds least (LEAF's writers, FLamby's centres)",
    "two_level": "Dirichlet alpha_edge over edge servers, then alpha over each one's clients, both by scheme "
    "(H-SFP and other hierarchical studies); brings its own edge map",
    "file": "the clients written by rayfl partition --save",
}
"""Name -> what it does and which public code means it."""


def knobs(law: PartitionConfig) -> dict[str, object]:
    """The settings that have a say in a law, besides ``min_size`` and kin: {"scheme": ..., "alpha": ...}."""
    names: dict[str, tuple[str, ...]] = {
        "dirichlet": ("scheme", "alpha"),
        "shards": ("shards_per_client",),
        "pathological": ("classes_per_client",),
        "dominant": ("dominant_ratio",),
        "quantity": ("quantity_law", "alpha" if law.quantity_law == "dirichlet" else "sigma"),
        "domain": ("within", *(("scheme", "alpha") if law.within == "dirichlet" else ())),
        "natural": ("natural_by",),
        "two_level": ("scheme", "alpha_edge", "alpha"),
    }
    return {name: getattr(law, name) for name in names.get(law.kind, ())}


def named(law: PartitionConfig) -> str:
    """A law with its settings, for titles and messages: "dirichlet niid_bench, alpha 0.5"."""
    values = knobs(law)
    words = [law.kind, *(value for value in values.values() if isinstance(value, str))]
    numbers = [f"{name} {value:g}" for name, value in values.items() if isinstance(value, int | float)]
    return ", ".join([" ".join(words), *numbers])


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


def dominant(rng: np.random.Generator, class_sizes: Ints, num_clients: int, ratio: float) -> Ints:
    """Counts [n, K]: equal sizes, a share ``ratio`` of the dominant class, the rest even over the others.

    Client i is dominated by the class i mod K (of those that have samples). Nothing is drawn twice, and
    everything is dealt out, so with classes of equal size and n a multiple of K each client has its ratio to
    within a sample. Else classes run out: a class that can't give all who are dominated by it their share
    is divided evenly among them, the others fill up evenly with what is left, and take more of their own
    dominant class only once all others are gone. MergeSFL (Liao et al. 2024) has the same law for n = K.
    """
    present = np.flatnonzero(class_sizes)
    sizes = even(int(class_sizes.sum()), num_clients)
    leads = np.zeros((num_clients, len(class_sizes)), dtype=bool)
    leads[np.arange(num_clients), present[np.arange(num_clients) % len(present)]] = True
    wanted = np.where(leads, np.round(ratio * sizes).astype(np.int64)[:, None], 0)
    counts = _granted(rng, wanted, class_sizes)
    while True:
        missing, stock = sizes - counts.sum(axis=1), class_sizes - counts.sum(axis=0)
        if not missing.any():
            return counts
        allowed = (stock > 0) & ~leads
        allowed[~allowed.any(axis=1)] = stock > 0
        wanted = np.where(allowed, missing[:, None] // allowed.sum(axis=1, keepdims=True), 0)
        if not wanted.any():
            # Fewer are missing than there are classes: one each, of those with most left.
            for i in permutation(rng, num_clients):
                order = np.argsort(-stock, kind="stable")
                chosen = order[allowed[i, order] & (stock[order] > 0)][: missing[i]]
                counts[i, chosen] += 1
                stock[chosen] -= 1
            continue
        counts += _granted(rng, wanted, stock)


def _granted(rng: np.random.Generator, wanted: Ints, stock: Ints) -> Ints:
    """Of ``wanted`` [n, K] what ``stock`` [K] allows: a scarce class is divided in proportion."""
    granted = wanted.copy()
    for k in np.flatnonzero(wanted.sum(axis=0) > stock):
        granted[:, k] = apportion(int(stock[k]), wanted[:, k].astype(np.float64), rng)
    return granted


def quantity_dirichlet(rng: np.random.Generator, total: int, num_clients: int, alpha: float) -> Ints:
    """Sizes [n] by Dir_n(alpha) (Li et al. 2022, arXiv:2102.02079, "quantity skew")."""
    return cut(total, shares(log_gamma(rng, np.full(num_clients, alpha))))


def quantity_lognormal(rng: np.random.Generator, total: int, num_clients: int, sigma: float) -> Ints:
    """Sizes [n] in proportion to exp(sigma * z), z standard normal (FedDyn and FedLab, "unbalanced")."""
    return cut(total, shares(sigma * normals(rng, num_clients)))


def deal_whole(rng: np.random.Generator, unit_sizes: Ints, num_clients: int) -> Ints:
    """The client [U] of each unit of ``unit_sizes`` [U] samples: in random order, to whoever holds least.

    Ties go to the lowest client. Nobody is empty, and sizes differ by at most that of the largest unit. As
    many units as clients need no dealing: unit i is client i.
    """
    if len(unit_sizes) == num_clients:
        return np.arange(num_clients)
    owner = np.empty(len(unit_sizes), dtype=np.int64)
    least = [(0, i) for i in range(num_clients)]
    for unit in permutation(rng, len(unit_sizes)):
        held, i = least[0]
        heapq.heapreplace(least, (held + int(unit_sizes[unit]), i))
        owner[unit] = i
    return owner
