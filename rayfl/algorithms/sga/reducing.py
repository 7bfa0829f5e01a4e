"""One server step from batches of mixed depths: what goes through the model at once, and who counts where."""

from collections.abc import Mapping

from rayfl.algorithms.sga.interfaces import Part
from rayfl.algorithms.sga.messages import DeepBatch


def together(batches: Mapping[int, DeepBatch], merged: bool) -> list[dict[int, DeepBatch]]:
    """Client by client, or (``merged``) all of one depth at once, shallow ones first."""
    if not merged:
        return [{client: batch} for client, batch in batches.items()]
    groups: dict[int, dict[int, DeepBatch]] = {}
    for client, batch in batches.items():
        groups.setdefault(batch.depth, {})[client] = batch
    return [groups[depth] for depth in sorted(groups)]


def rescale(part: Part, depths: Mapping[int, int], masses: Mapping[int, float]) -> None:
    """Turn gradients by shares of all present into those by shares of the clients that pass through a block.

    ``depths``: the candidate of each client, from 1. Blocks above the deepest candidate see everybody.
    """
    total = sum(masses.values())
    for number in range(2, len(part.ends) + 1):
        passing = sum(masses[client] for client, depth in depths.items() if depth < number)
        if 0 < passing < total:
            for parameter in part[part.ends[number - 2] : part.ends[number - 1]].parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(total / passing)
