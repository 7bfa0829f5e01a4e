"""Which party belongs to which: what routing follows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Who belongs to whom: which entries of a parcel a party gets."""

    edge_of: tuple[int, ...]
    """The edge server of each client."""
    shard_of: tuple[int, ...]
    """The main-server shard that serves each client."""

    def wanted(self, role: str, index: int, axis: str, per_client: bool) -> Sequence[int] | None:
        """The keys of a parcel along ``axis`` that this party gets; None for all of them."""
        if role == axis:
            return (index,)
        if role == "client" and axis == "edge":
            return (self.edge_of[index],)
        if role == "edge" and axis == "client":
            return [i for i, edge in enumerate(self.edge_of) if edge == index]
        if role == "main" and axis == "client" and per_client:
            return [i for i, shard in enumerate(self.shard_of) if shard == index]
        return None


def gets_one(role: str, axis: str) -> bool:
    """Whether a party gets its own entry of a parcel along ``axis``, not a mapping."""
    return role == axis or (role == "client" and axis == "edge")
