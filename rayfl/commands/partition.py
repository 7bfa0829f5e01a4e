"""``rayfl partition``: who holds what."""

import argparse
from typing import TYPE_CHECKING

from rayfl.commands.command import DONE, Command, print_json, takes_config
from rayfl.errors import UserError

if TYPE_CHECKING:
    from rayfl.data import FederatedData, Statistics

CLIENTS, CLASSES = 60, 20
"""Rows and class columns of the table, at most."""


def partition(args: argparse.Namespace) -> int:
    """Who holds what, before anything is trained."""
    from rayfl import data, loading, text

    if args.picture:
        data.check_picture(args.picture)
    config = loading.load_experiment(args.source, args.settings, args.with_files)
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
    print(text.columns(_table(federated, statistics)))
    if len(statistics.sizes) > CLIENTS or train.num_classes > CLASSES:
        print(f"(up to {CLIENTS} clients and {CLASSES} classes; --json has all)")
    print(f"{title}: {statistics.line()}")
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


def _table(federated: "FederatedData", statistics: "Statistics") -> list[list[object]]:
    """A row for each client: its edge server, then its samples: all, by class, by domain."""
    shown = [statistics.counts[:, :CLASSES]]
    heads = [f"class {k}" for k in range(shown[0].shape[1])]
    if statistics.domain_counts is not None:
        shown.append(statistics.domain_counts)
        names = federated.train.domain_names
        heads += [names[d] if d < len(names) else f"domain {d}" for d in range(shown[1].shape[1])]
    rows: list[list[object]] = [["client", "edge", "samples", *heads]]
    for client, edge in enumerate(federated.client_edges[:CLIENTS]):
        numbers = [count or "." for counts in shown for count in counts[client].tolist()]
        rows.append([client, edge, statistics.sizes[client], *numbers])
    return rows


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl partition`` takes."""
    takes_config(parser, "a preset or a YAML file")
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
