"""Dividing samples over clients: reproducible, disjoint, bounded in time."""

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rayfl.data import schemes
from rayfl.data.config import PartitionConfig
from rayfl.data.edge_map import blocks
from rayfl.data.info import Labels
from rayfl.data.laws import Divided, deal, divide
from rayfl.data.minimum import too_small, until_large
from rayfl.data.partition import Partition
from rayfl.data.partition_checks import check, units
from rayfl.data.partition_file import from_file
from rayfl.data.sampling import Ints, even
from rayfl.errors import UserError
from rayfl.seeding import numpy_generator

log = logging.getLogger("rayfl.data")


def partition(
    labels: npt.ArrayLike,
    num_classes: int,
    config: PartitionConfig,
    num_clients: int,
    seed: int,
    *,
    domains: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    num_edges: int = 1,
) -> Partition:
    """Divide the rows of ``labels`` [N] over ``num_clients``; a pure function of its arguments.

    ``domains`` [N] and ``groups`` [N] are what the kinds domain and natural go by, ``num_edges`` what
    two_level does. Every row goes to exactly one client; the exceptions are classes that nobody holds under
    ``pathological`` and rows that a ``file`` leaves out. Raises UserError where the request can't be met.
    """
    known, in_domains, in_groups = (
        None if numbers is None else np.asarray(numbers, dtype=np.int64)
        for numbers in (labels, domains, groups)
    )
    assert known is not None
    samples = Labels(labels=known, domains=in_domains, groups=in_groups)
    check(samples, num_classes, config, num_clients, num_edges)
    if config.kind == "file":
        return from_file(config, samples.labels, num_clients, num_edges)
    _warn(samples.labels, num_classes, config)
    rng = numpy_generator(seed, "partition")
    if config.kind == "natural":
        return Partition.of(*_natural(rng, units(samples, config), config, num_clients))
    if config.kind == "domain":
        return Partition.of(*_by_domain(rng, samples, num_classes, config, num_clients))
    if config.kind == "two_level":
        edges = blocks(num_clients, num_edges)
        members = np.bincount(edges).tolist()
        return Partition.of(
            *divide(rng, samples.labels, num_classes, config, num_clients, members), edges.tolist()
        )
    return Partition.of(*divide(rng, samples.labels, num_classes, config, num_clients))


def _warn(labels: Ints, num_classes: int, config: PartitionConfig) -> None:
    """Say what is easily overlooked."""
    knobs = schemes.knobs(config)
    if knobs.get("scheme") == "hsu":
        log.warning(
            "data.partition.scheme=hsu: alpha=%g there is alpha=%g under per_client (%d classes)",
            config.alpha, config.alpha / num_classes, num_classes,
        )  # fmt: skip
    by_label = knobs.keys() & {"scheme", "shards_per_client", "classes_per_client", "dominant_ratio"}
    if by_label and (labels == labels[0]).all():
        log.warning(
            "all labels are %d: data.partition.kind=%s divides by label and can at most skew sizes; iid, "
            "quantity, domain and natural don't need labels", labels[0], config.kind,
        )  # fmt: skip


def _natural(rng: np.random.Generator, unit: Ints, config: PartitionConfig, num_clients: int) -> Divided:
    """Rows by client, each domain or group whole; dealt again where a client came out too small."""
    _, unit, unit_sizes = np.unique(unit, return_inverse=True, return_counts=True)

    def sizes(owner: Ints) -> Ints:
        return np.bincount(owner, weights=unit_sizes, minlength=num_clients).astype(np.int64)

    owner, tries = until_large(
        lambda: schemes.deal_whole(rng, unit_sizes, num_clients),
        sizes,
        config.min_size,
        1 if len(unit_sizes) == num_clients else config.max_tries,
    )
    smallest = int(sizes(owner).min())
    if smallest < config.min_size:
        raise too_small(config, num_clients, smallest, len(unit), tries)
    return deal(np.argsort(owner[unit], kind="stable"), sizes(owner)), tries


def _by_domain(
    rng: np.random.Generator, samples: Labels, num_classes: int, config: PartitionConfig, num_clients: int
) -> Divided:
    """Rows by client, domain after domain; the clients left over go to the domains with most samples."""
    domain = units(samples, config)
    present, sizes = np.unique(domain, return_counts=True)
    clients = np.empty(len(present), dtype=np.int64)
    clients[np.argsort(-sizes, kind="stable")] = even(num_clients, len(present))
    divided, most = [], 1
    for d, size, n in zip(present.tolist(), sizes.tolist(), clients.tolist(), strict=True):
        if config.min_size * n > size:
            raise UserError(
                f"domain {d} has {size} samples for {n} clients of data.partition.min_size="
                f"{config.min_size}: lower data.num_clients or data.partition.min_size"
            )
        rows = np.flatnonzero(domain == d)
        inner = replace(config, kind=config.within)
        pieces, tries = divide(rng, samples.labels[rows], num_classes, inner, n, where=f" in domain {d}")
        divided += [rows[piece] for piece in pieces]
        most = max(most, tries)
    return divided, most
