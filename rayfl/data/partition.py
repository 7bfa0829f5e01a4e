"""A partition as a value: rows per client and their fingerprint."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayfl.data.sampling import Ints
from rayfl.data.statistics import Statistics, measure


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows per client."""

    indices: tuple[Ints, ...]
    """Per client: its rows, ascending, int64; no row belongs to two clients."""
    hash: str
    """16 hex digits of the SHA-256 of the rows, client by client, and of ``edges`` where there are some."""
    tries: int
    """Draws it took."""
    edges: tuple[int, ...] | None = None
    """Per client: its edge server; None for contiguous blocks, of however many edges."""

    @classmethod
    def of(
        cls, rows: Sequence[npt.ArrayLike], tries: int = 1, edges: Sequence[int] | None = None
    ) -> "Partition":
        """The partition of these rows per client, sorted and hashed."""
        indices = tuple(np.sort(np.asarray(r, dtype=np.int64)) for r in rows)
        digest = hashlib.sha256()
        for r in indices:
            r.flags.writeable = False
            digest.update(len(r).to_bytes(8, "little"))
            digest.update(r.astype("<i8").tobytes())
        if edges is not None:
            edges = tuple(map(int, edges))
            digest.update(b"edges" + np.array(edges, dtype="<i8").tobytes())
        return cls(indices, digest.hexdigest()[:16], tries, edges)

    def statistics(
        self, labels: npt.ArrayLike, num_classes: int, domains: npt.ArrayLike | None = None
    ) -> Statistics:
        """Numbers to print and to compare; the rows point into ``labels`` [N] and ``domains`` [N]."""
        return measure(
            self.indices,
            np.asarray(labels),
            num_classes,
            domains=None if domains is None else np.asarray(domains),
            edges=self.edges,
        )
