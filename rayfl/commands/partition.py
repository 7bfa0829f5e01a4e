"""``rayfl partition``: who holds what."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rayfl import waiting
from rayfl.commands.command import DONE, Command, print_json, takes_config
from rayfl.errors import UserError

if TYPE_CHECKING:
    from rayfl.data import FederatedData, Statistics

CLIENTS, CLASSES, NAME = 60, 20, 12
"""Rows, class columns and letters of a class's name in the table, at most."""


def partition(args: argparse.Namespace) -> int:
    """Who holds what, before anything is trained."""
    with waiting.loading():
        from rayfl import algorithms, data, text
        from rayfl.loading.experiments import load_experiment

    if args.picture:
        data.check_picture(args.picture)
    config = load_experiment(args.source, args.settings, args.with_files)
    federated = data.load(config.data, config.seed)
    divided, train = federated.partition, federated.train
    title = data.describe(config.data, config.seed)
    statistics = federated.statistics()
    try:
        if args.picture:
            data.draw_partition(
                divided,
                train.labels,
                train.num_classes,
                args.picture,
                title,
                domains=train.domains,
                domain_names=train.domain_names,
            )
        if args.save:
            data.save_partition(divided, args.save, train.labels)
    except (OSError, ValueError) as error:
        raise UserError(f"can't write the partition: {error}; choose another place") from error
    if args.json:
        print_json(_as_json(federated, statistics))
        return DONE
    edges = "edge" in algorithms.find(config.algorithm.name).cast() or config.data.edge_map != "blocks"
    print(text.columns(_table(federated, statistics, edges)))
    if len(statistics.sizes) > CLIENTS or train.num_classes > CLASSES:
        print(f"(up to {CLIENTS} clients and {CLASSES} classes; --json has all)")
    print(f"{title}: {statistics.line()}")
    if edges:
        print(statistics.edge_line())
    print(f"{len(federated.validation_indices)} validation and {len(federated.test)} test samples")
    print(f"partition hash {divided.hash}")
    for path in filter(None, (args.picture, args.save)):
        print(f"written: {path}")
    return DONE


def _as_json(federated: "FederatedData", statistics: "Statistics") -> dict[str, object]:
    found = statistics
    assert found.edge_counts is not None
    return {
        "partition_hash": federated.partition.hash,
        "sizes": found.sizes.tolist(),
        "counts": found.counts.tolist(),
        "domains": None if found.domain_counts is None else found.domain_counts.tolist(),
        "domain_names": list(federated.train.domain_names),
        "edges": list(federated.client_edges),
        "edge_counts": found.edge_counts.tolist(),
        "validation": len(federated.validation_indices),
        "size_cv": found.size_cv,
        "classes_held": found.classes_held,
        "top_share": found.top_share,
        "total_variation": found.total_variation,
        "edge_variation": found.edge_variation,
        "within_edge_variation": found.within_edge_variation,
    }


def _table(federated: "FederatedData", statistics: "Statistics", edges: bool) -> list[list[object]]:
    """A row for each client: its edge server, then its samples: all, by class, by domain."""
    train, shown = federated.train, [statistics.counts[:, :CLASSES]]
    heads = [_head(train.class_names, k, "class") for k in range(shown[0].shape[1])]
    if statistics.domain_counts is not None:
        shown.append(statistics.domain_counts)
        heads += [_head(train.domain_names, d, "domain") for d in range(shown[1].shape[1])]
    rows: list[list[object]] = [["client", *(["edge"] if edges else []), "samples", *heads]]
    for client, edge in enumerate(federated.client_edges[:CLIENTS]):
        numbers = [count or "." for counts in shown for count in counts[client].tolist()]
        rows.append([client, *([edge] if edges else []), statistics.sizes[client], *numbers])
    return rows


def _head(names: Sequence[str], number: int, kind: str) -> str:
    """The name of a class or domain, cut short; a bare number says what it counts."""
    name = names[number] if number < len(names) else str(number)
    return f"{kind} {name}" if name.isdecimal() else name[:NAME]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl partition`` takes."""
    takes_config(parser, "a preset's name or a YAML file")
    parser.add_argument("--picture", metavar="FILE", help="draw it (.png, .pdf or .svg)")
    parser.add_argument(
        "--save", metavar="FILE", help="write it as .npz, for data.partition={kind: file, path: FILE}"
    )


EXAMPLES = """\
  rayfl partition splitfed_v1.mnist5k
  rayfl partition fedavg.mnist5k data.partition='{kind: dirichlet, alpha: 0.1}' --picture who.png"""

COMMAND = Command(
    name="partition",
    help="Show who holds what: a table, statistics, a picture.",
    examples=EXAMPLES,
    arguments=arguments,
    main=partition,
)
