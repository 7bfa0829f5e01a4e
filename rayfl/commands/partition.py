"""``rayfl partition``: who holds what."""

import argparse

from rayfl.commands.command import DONE, Command, print_json, takes_config
from rayfl.errors import UserError


def partition(args: argparse.Namespace) -> int:
    """Who holds what, before anything is trained."""
    from rayfl import data, loading, text

    config = loading.load_experiment(args.source, args.settings, args.with_files)
    federated = data.load(config.data, config.seed)
    divided, train = federated.partition, federated.train
    title = data.describe(config.data, config.seed)
    statistics = divided.statistics(train.labels, train.num_classes)
    try:
        if args.picture:
            data.draw_partition(divided, train.labels, train.num_classes, args.picture, title)
        if args.save:
            data.save_partition(divided, args.save, train.labels)
    except (OSError, ValueError) as error:
        raise UserError(f"can't write the partition: {error}; choose another place") from error
    if args.json:
        print_json(
            {
                "partition_hash": divided.hash,
                "sizes": statistics.sizes.tolist(),
                "counts": statistics.counts.tolist(),
                "edges": list(federated.client_edges),
                "validation": len(federated.validation_indices),
                "size_cv": statistics.size_cv,
                "classes_held": statistics.classes_held,
                "top_share": statistics.top_share,
                "total_variation": statistics.total_variation,
            }
        )
        return DONE
    shown, classes = min(len(statistics.sizes), 60), min(train.num_classes, 20)
    rows: list[list[object]] = [["client", "edge", "samples", *(f"class {k}" for k in range(classes))]]
    for client in range(shown):
        counts = [count or "." for count in statistics.counts[client][:classes].tolist()]
        rows.append([client, federated.client_edges[client], statistics.sizes[client], *counts])
    print(text.columns(rows))
    if shown < len(statistics.sizes) or classes < train.num_classes:
        print(f"(the first {shown} clients and {classes} classes; --json has all)")
    print(f"{title}: {statistics.line()}")
    print(f"{len(federated.validation_indices)} validation and {len(federated.test)} test samples")
    print(f"partition hash {divided.hash}")
    return DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl partition`` takes."""
    takes_config(parser, "a preset or a YAML file")
    parser.add_argument("--picture", metavar="FILE", help="draw it as a PNG")
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
