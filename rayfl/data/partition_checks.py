"""Requests for a partition that no draw could meet, refused at once."""

import math
from typing import get_args

import numpy as np

from rayfl.data.config import Kind, PartitionConfig, Scheme
from rayfl.data.info import Labels
from rayfl.data.sampling import Ints
from rayfl.errors import UserError
from rayfl.suggest import unknown

CHOICES = {
    "kind": get_args(Kind),
    "scheme": get_args(Scheme),
    "quantity_law": ("dirichlet", "lognormal"),
    "on_small": ("error", "repair"),
    "within": ("iid", "dirichlet"),
    "natural_by": ("group", "domain"),
}
LOWEST = {"min_size": 0, "max_tries": 1, "shards_per_client": 1, "classes_per_client": 1}


def check(
    samples: Labels, num_classes: int, config: PartitionConfig, num_clients: int, num_edges: int
) -> None:
    """Raise UserError where the request can't be met, whatever is drawn."""
    _check_values(config)
    for name, count in (("num_clients", num_clients), ("num_edges", num_edges)):
        if count < 1:
            raise UserError(f"data.{name} must be at least 1, got {count}: raise it")
    labels, total = samples.labels, len(samples.labels)
    if total and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UserError(
            f"labels must lie in 0..{num_classes - 1}, got {labels.min()}..{labels.max()}: fix the dataset"
        )
    if config.kind == "file":
        return
    if num_clients > total:
        raise UserError(
            f"data.num_clients={num_clients} is more than the {total} training samples: "
            f"lower data.num_clients"
        )
    if config.min_size * num_clients > total:
        raise UserError(
            f"data.num_clients={num_clients} with data.partition.min_size={config.min_size} need "
            f"{config.min_size * num_clients} training samples, there are {total}: lower either"
        )
    if config.kind == "shards" and config.shards_per_client * num_clients > total:
        raise UserError(
            f"data.num_clients={num_clients} with data.partition.shards_per_client="
            f"{config.shards_per_client} need at least one sample a shard, there are {total}: lower either"
        )
    if config.kind == "pathological" and config.classes_per_client > num_classes:
        raise UserError(
            f"data.partition.classes_per_client={config.classes_per_client} is more than the {num_classes} "
            f"classes: lower it"
        )
    if config.kind == "two_level" and num_edges > num_clients:
        raise UserError(
            f"data.partition.kind=two_level needs a client for each edge server, got "
            f"data.num_edges={num_edges} and data.num_clients={num_clients}: lower data.num_edges"
        )
    if config.kind in ("domain", "natural"):
        _check_units(units(samples, config), config, num_clients)


def units(samples: Labels, config: PartitionConfig) -> Ints:
    """The number [N] of the domain or group each sample is from. Raises UserError where the set has none."""
    by = "domain" if config.kind == "domain" else config.natural_by
    found = samples.domains if by == "domain" else samples.groups
    if found is None:
        asked = f"data.partition.kind={config.kind}"
        if config.kind == "natural":
            asked += f" with data.partition.natural_by={by}"
        others = [k for k in get_args(Kind) if k not in ("domain", "natural", "file")]
        if config.kind == "natural" and (samples.groups if by == "domain" else samples.domains) is not None:
            others.insert(0, f"natural with natural_by={'group' if by == 'domain' else 'domain'}")
        raise UserError(
            f"{asked} needs a set whose samples have a {by}, this one's have none: take another set "
            f"(rayfl list datasets; synthetic has data.synthetic.num_domains) or "
            f"data.partition.kind={', '.join(others)}"
        )
    return found


def _check_units(found: Ints, config: PartitionConfig, num_clients: int) -> None:
    by = "domain" if config.kind == "domain" else config.natural_by
    present = len(np.unique(found))
    if config.kind == "domain" and num_clients < present:
        raise UserError(
            f"data.partition.kind=domain needs a client for each of the {present} domains, got "
            f"data.num_clients={num_clients}: raise it to {present} or more"
        )
    if config.kind == "natural" and num_clients > present:
        raise UserError(
            f"data.partition.kind=natural divides no {by}, and there are {present} for "
            f"data.num_clients={num_clients}: lower it to {present} or less"
        )


def _check_values(config: PartitionConfig) -> None:
    for name, known in CHOICES.items():
        if getattr(config, name) not in known:
            raise unknown(f"data.partition.{name}", getattr(config, name), known)
    for name in ("alpha", "alpha_edge"):
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise UserError(
                f"data.partition.{name} must be a finite number above 0, got {value}: 0.1 to 1 is usual"
            )
    if not (math.isfinite(config.sigma) and config.sigma >= 0):
        raise UserError(
            f"data.partition.sigma must be a finite number from 0 up, got {config.sigma}: 1 is usual"
        )
    if not 0 <= config.dominant_ratio <= 1:
        raise UserError(
            f"data.partition.dominant_ratio must lie in [0, 1], got {config.dominant_ratio}: "
            f"0.2 to 0.8 is usual"
        )
    for name, bound in LOWEST.items():
        if getattr(config, name) < bound:
            raise UserError(
                f"data.partition.{name} must be at least {bound}, got {getattr(config, name)}: raise it"
            )
