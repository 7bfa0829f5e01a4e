"""Which clients an edge server serves."""

from typing import get_args

import numpy as np

from rayfl.data.config import EdgeMap
from rayfl.data.sampling import Floats, Ints, permutation
from rayfl.data.statistics import mixes
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator
from rayfl.suggest import unknown

EDGE_MAPS: dict[str, str] = {
    "blocks": "contiguous blocks of client numbers, equal in clients to within one",
    "random": "as blocks, of clients in random order",
    "label_similar": "clients of similar class shares together, equal in clients to within one",
    "label_diverse": "the opposite: the clients of each edge together are like all clients; equal likewise",
    "domain": "clients of one domain together: several domains per edge, or several edges per domain",
}
"""Name -> what it does."""

STARTS, MAX_SWEEPS, LEAST_GAIN = 5, 20, 1e-8
"""Of ``label_similar``: starts, new centres per start, and the drop of squared distance worth an exchange."""


def edge_map(
    kind: EdgeMap, num_edges: int, seed: int, counts: Ints, domain_counts: Ints | None
) -> tuple[int, ...]:
    """The edge server of each client; a pure function of its arguments, fixed for the run.

    ``counts`` [n, K] and ``domain_counts`` [n, D] are the clients' samples per class and domain. Raises
    UserError for an unknown kind, and for ``domain`` where the set has no domains.
    """
    if kind not in get_args(EdgeMap):
        raise unknown("data.edge_map", kind, get_args(EdgeMap))
    num_clients = len(counts)
    if kind == "random":
        order = permutation(numpy_generator(seed, "edge-map"), num_clients)
        return tuple(blocks(num_clients, num_edges)[order].tolist())
    if kind == "label_similar":
        return tuple(label_similar(counts, num_edges).tolist())
    if kind == "label_diverse":
        return tuple(label_diverse(counts, num_edges).tolist())
    if kind == "domain":
        if domain_counts is None:
            others = ", ".join(k for k in get_args(EdgeMap) if k != "domain")
            raise UserError(
                f"data.edge_map=domain needs a set with domains, this one has none: take another set "
                f"(rayfl list datasets) or data.edge_map={others}"
            )
        return tuple(by_domain(domain_counts.argmax(axis=1), num_edges).tolist())
    return tuple(blocks(num_clients, num_edges).tolist())


def blocks(num_clients: int, num_edges: int) -> Ints:
    """The edge of each client, int64 [n]: contiguous blocks, equal to within one."""
    return np.arange(num_clients, dtype=np.int64) * num_edges // num_clients


def label_similar(counts: Ints, num_edges: int) -> Ints:
    """The edge of each client, int64 [n]: k-means of the class shares of ``counts`` [n, K] in equal parts.

    As in Lloyd's k-means, edge centres are computed and clients moved nearer to them, in turns; to keep edges
    of equal size, two edges exchange clients, as many as gain from it. Each step lowers the sum of squared
    distances. Of several starts (blocks of the clients sorted by most frequent class and its share, then
    random orders that are the same for every seed) the one that ends lowest counts. Edges are numbered by
    their first client; a client without samples counts as average.
    """
    mix = mixes(counts)
    mix[counts.sum(axis=1) == 0] = mixes(counts.sum(axis=0))
    starts = [np.lexsort((-mix.max(axis=1), counts.argmax(axis=1)))]
    starts += [permutation(numpy_generator(0, "label-similar", i), len(mix)) for i in range(1, STARTS)]
    found = []
    for order in starts:
        edge = np.empty(len(mix), dtype=np.int64)
        edge[order] = blocks(len(mix), num_edges)
        found.append(_descend(mix, edge, num_edges))
    # Rounded, as below: what is equal on paper is equal on every machine.
    costs = [round(float(cost), 6) for _, cost in found]
    return _numbered(found[costs.index(min(costs))][0])


def _descend(mix: Floats, edge: Ints, num_edges: int) -> tuple[Ints, float]:
    """Exchange clients until nothing is gained; the edges and the sum of squared distances."""
    everyone = np.arange(len(mix))
    for _ in range(MAX_SWEEPS):
        distance = np.full((len(mix), num_edges), np.inf)
        for e in np.unique(edge):
            distance[:, e] = np.round(((mix - mix[edge == e].mean(axis=0)) ** 2).sum(axis=1), 9)
        gain = np.full((num_edges, num_edges), -np.inf)
        np.maximum.at(gain, edge, distance[everyone, edge][:, None] - distance)
        pairs = np.argwhere(np.triu(gain + gain.T, 1) > LEAST_GAIN)
        if not len(pairs):
            break
        for a, b in pairs.tolist():
            _exchange(edge, distance, a, b)
    return edge, distance[everyone, edge].sum()


def _exchange(edge: Ints, distance: Floats, a: int, b: int) -> None:
    """Swap clients of edges ``a`` and ``b`` as long as a swap brings the two nearer in sum."""
    ours, theirs = np.flatnonzero(edge == a), np.flatnonzero(edge == b)
    leave = distance[ours, a] - distance[ours, b]
    come = distance[theirs, b] - distance[theirs, a]
    first, second = np.argsort(-leave, kind="stable"), np.argsort(-come, kind="stable")
    pairs = min(len(ours), len(theirs))
    swaps = int((leave[first[:pairs]] + come[second[:pairs]] > LEAST_GAIN).sum())
    edge[ours[first[:swaps]]], edge[theirs[second[:swaps]]] = b, a


def label_diverse(counts: Ints, num_edges: int) -> Ints:
    """The edge of each client, int64 [n]: class counts as near to those of all clients as a greedy deal gets.

    Clients go, those furthest from the class shares of all first, to the edge with room whose samples it
    brings nearest to them. Edges are numbered by their first client.
    """
    excess = counts - counts.sum(axis=1, keepdims=True) * mixes(counts.sum(axis=0))
    room = np.bincount(blocks(len(counts), num_edges), minlength=num_edges)
    held = np.zeros((num_edges, counts.shape[1]))
    edge = np.empty(len(counts), dtype=np.int64)
    for client in np.argsort(-np.round((excess**2).sum(axis=1), 6), kind="stable"):
        # Of |held + excess|^2, all else is the same for every edge.
        growth = np.where(room > 0, np.round(held @ excess[client], 6), np.inf)
        e = int(growth.argmin())
        held[e] += excess[client]
        room[e] -= 1
        edge[client] = e
    return _numbered(edge)


def by_domain(domain: Ints, num_edges: int) -> Ints:
    """The edge of each client, int64 [n], from the domain [n] that most of its samples are of.

    With fewer edges than domains, domains go whole, those with most clients first, to the edge that serves
    fewest so far. With more, each has one and the next goes to the domain with most clients per edge, whose
    clients are cut into blocks. No edge is left without a client while clients suffice. Edges are numbered
    by their first client.
    """
    domains, clients = np.unique(domain, return_counts=True)
    edge = np.empty(len(domain), dtype=np.int64)
    if num_edges <= len(domains):
        served = np.zeros(num_edges, dtype=np.int64)
        for d in np.argsort(-clients, kind="stable"):
            e = int(served.argmin())
            served[e] += clients[d]
            edge[domain == domains[d]] = e
    else:
        parts = np.ones(len(domains), dtype=np.int64)
        for _ in range(min(num_edges, len(domain)) - len(domains)):
            parts[int((clients / parts).argmax())] += 1
        for d, first in enumerate(np.cumsum(parts) - parts):
            edge[domain == domains[d]] = first + blocks(int(clients[d]), int(parts[d]))
    return _numbered(edge)


def _numbered(edge: Ints) -> Ints:
    """The same edges, in the order of their first client."""
    _, first, of = np.unique(edge, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[of], dtype=np.int64)
