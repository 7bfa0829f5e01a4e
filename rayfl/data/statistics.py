"""Who holds what, in numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayfl.data.sampling import Floats, Ints


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics:
    """Who holds what, in numbers. Means over clients or edges are over those that hold something."""

    counts: Ints
    """Samples per client and class [n, K]."""
    sizes: Ints
    """Samples per client [n]."""
    size_cv: float
    """Standard deviation of the sizes over their mean."""
    classes_held: float
    """Mean number of classes a client holds."""
    top_share: float
    """Mean share of a client's most frequent class."""
    total_variation: float
    """Mean total-variation distance of a client's class shares to those of all clients together, 0 to 1."""
    domain_counts: Ints | None = None
    """Samples per client and domain [n, D], where the set has domains."""
    edge_counts: Ints | None = None
    """Samples per edge server and class [E, K], where edges are known."""
    edge_variation: float | None = None
    """Mean total-variation distance of an edge's class shares to those of all clients together."""
    within_edge_variation: float | None = None
    """Mean total-variation distance of a client's class shares to those of its edge's clients together."""

    def line(self) -> str:
        """One line for logs and captions."""
        domains = ""
        if self.domain_counts is not None:
            domains = f", {(self.domain_counts[self.sizes > 0] > 0).sum(axis=1).mean():.1f} domains each"
        return (
            f"{len(self.sizes)} clients, {int(self.sizes.min())} to {int(self.sizes.max())} samples "
            f"(CV {self.size_cv:.2f}), {self.classes_held:.1f} classes each, top class {self.top_share:.0%}, "
            f"TV to all {self.total_variation:.2f}{domains}"
        )

    def edge_line(self) -> str:
        """The same for edge servers; empty where none are known."""
        if self.edge_counts is None:
            return ""
        sizes = self.edge_counts.sum(axis=1)
        return (
            f"{len(sizes)} edges, {int(sizes.min())} to {int(sizes.max())} samples, "
            f"TV of clients to their edge {self.within_edge_variation:.2f}, "
            f"of edges to all {self.edge_variation:.2f}"
        )


def measure(
    rows: Sequence[Ints],
    labels: Ints,
    num_classes: int,
    *,
    domains: Ints | None = None,
    num_domains: int = 0,
    edges: Sequence[int] | None = None,
    num_edges: int = 0,
) -> Statistics:
    """The statistics of ``rows`` per client, which point into ``labels`` [N] and ``domains`` [N].

    ``edges`` names each client's edge server. ``num_domains`` and ``num_edges`` may be left out where
    the highest number is in use.
    """
    counts = tally(rows, labels, num_classes)
    sizes, total = counts.sum(axis=1), counts.sum(axis=0)
    held = mixes(counts[sizes > 0])
    found = Statistics(
        counts=counts,
        sizes=sizes,
        size_cv=float(sizes.std() / sizes.mean()) if sizes.any() else 0.0,
        classes_held=_mean((held > 0).sum(axis=1)),
        top_share=_mean(held.max(axis=1, initial=0)),
        total_variation=_mean(variation(held, mixes(total))),
    )
    more: dict[str, object] = {}
    if domains is not None:
        more["domain_counts"] = tally(rows, domains, max(num_domains, int(domains.max(initial=-1)) + 1))
    if edges is not None:
        of = np.asarray(edges, dtype=np.int64)
        by_edge = np.zeros((max(num_edges, int(of.max()) + 1), num_classes), dtype=np.int64)
        np.add.at(by_edge, of, counts)
        serving = by_edge.sum(axis=1) > 0
        more["edge_counts"] = by_edge
        more["edge_variation"] = _mean(variation(mixes(by_edge[serving]), mixes(total)))
        more["within_edge_variation"] = _mean(variation(held, mixes(by_edge)[of[sizes > 0]]))
    return Statistics(**{**vars(found), **more})


def tally(rows: Sequence[Ints], numbers: Ints, count: int) -> Ints:
    """How often each client has each of ``count`` numbers, int64 [n, count]."""
    return np.stack([np.bincount(numbers[r], minlength=count) for r in rows]).astype(np.int64)


def mixes(counts: Ints) -> Floats:
    """Counts [..., K] as shares that sum to 1; nothing at all stays 0."""
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1), dtype=np.float64)


def variation(a: Floats, b: Floats) -> Floats:
    """Total-variation distance of shares, over the last axis."""
    return np.asarray(np.abs(a - b).sum(axis=-1) / 2, dtype=np.float64)


def _mean(values: npt.NDArray[np.generic]) -> float:
    return float(values.mean()) if values.size else 0.0
