"""Estimates side by side: what is printed of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rayfl.costs.estimate import Estimate
from rayfl.text import in_bytes

LEFT_OUT = (
    "client memory is a lower bound: without what a block keeps inside, its inputs, kernel workspaces and "
    "models that a method holds besides"
)


@dataclass(frozen=True)
class Row:
    """One experiment and what tells it from the others."""

    labels: dict[str, str]
    cost: Estimate


@dataclass(frozen=True)
class Table:
    """A header and rows of text."""

    title: str
    words: int
    """Leading columns that hold words; the others hold numbers."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Sides of the cut, traffic, and client memory of all experiments."""
    labels = tuple(rows[0].labels)
    sides, traffic, memory = [], [], []
    for row in rows:
        own, cost = tuple(row.labels.values()), row.cost
        for side in cost.sides:
            numbers = [
                f"{side.params:,}",
                f"{side.buffers:,}",
                f"{side.flops / 1e6:,.3f}",
                f"{side.macs / 1e6:,.3f}",
            ]
            leaving = f"{side.activation_elements:,}", in_bytes(side.activation_bytes)
            sides.append((*own, side.role, side.blocks, *numbers, *leaving))
        lines = [*cost.traffic.items(), (("all", "", ""), cost.ledger.total())]
        for line, total in lines:
            mean = in_bytes(total / max(cost.config.rounds, 1))
            traffic.append((*own, *line, mean, f"{total:,}", f"{total / 1e9:,.2f}", f"{total / 2**30:,.2f}"))
        needs = [*asdict(cost.memory).values(), cost.memory.total]
        memory.append((*own, *map(in_bytes, needs)))
    return [
        Table(
            "Sides of the cut, per sample (forward)",
            len(labels) + 2,
            (*labels, "side", "blocks", "params", "buffers", "MFLOPs", "MMACs", "activations", "bytes"),
            tuple(sides),
        ),
        Table(
            "Traffic",
            len(labels) + 3,
            (*labels, "link", "direction", "kind", "per round", "total bytes", "total GB", "total GiB"),
            tuple(traffic),
        ),
        Table(
            "Client memory, one batch",
            len(labels),
            (*labels, "weights", "gradients", "optimiser", "activations", "total"),
            tuple(memory),
        ),
    ]


def flat(row: Row) -> dict[str, Any]:
    """One experiment as one record of plain numbers."""
    cost, rounds = row.cost, max(row.cost.config.rounds, 1)
    record: dict[str, Any] = dict(row.labels)
    for side in cost.sides:
        record.update({f"{side.role}/{key}": value for key, value in asdict(side).items() if key != "role"})
    record.update({f"client/memory_{key}_bytes": value for key, value in asdict(cost.memory).items()})
    record["client/memory_bytes"] = cost.memory.total
    for (link, direction, kind), total in cost.traffic.items():
        record[f"comm/{link}_{direction}_{kind}_bytes"] = total / rounds
    total = cost.ledger.total()
    record.update({"rounds": cost.config.rounds, "comm/bytes_per_round": total / rounds})
    record.update({"comm/total_bytes": total, "comm/total_GB": total / 1e9, "comm/total_GiB": total / 2**30})
    return record


def nested(row: Row) -> dict[str, Any]:
    """One experiment for JSON, with its traffic round by round."""
    cost, total = row.cost, row.cost.ledger.total()
    mean = {"_".join(line): count / max(cost.config.rounds, 1) for line, count in cost.traffic.items()}
    return {
        **row.labels,
        "cell_hash": cost.config.cell_hash,
        "sides": [asdict(side) for side in cost.sides],
        "client_memory": {**asdict(cost.memory), "total": cost.memory.total},
        "bytes_per_round": mean,
        "total": {"bytes": total, "GB": total / 1e9, "GiB": total / 2**30},
        "rounds": list(cost.ledger.rows()),
        "notes": cost.notes,
    }
