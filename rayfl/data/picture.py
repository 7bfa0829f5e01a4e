"""The partition as a picture: who holds what."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.partition import Partition
from rayfl.data.sampling import Ints
from rayfl.data.schemes import named
from rayfl.data.stacks import colours, explain, stack
from rayfl.data.statistics import Statistics, mixes
from rayfl.errors import UserError

FEW = 60
"""Up to so many clients have a bar of their own; above, bars merge into a skyline."""
MARKED_EDGES = 40
"""Up to so many edge servers are named in the picture."""
PICTURE_TYPES = (".pdf", ".png", ".svg")


def describe(config: DataConfig, seed: int) -> str:
    """A dataset and how it is divided, as a title."""
    edges = "" if config.edge_map == "blocks" else f", edges {config.edge_map}"
    return f"{config.name}, {named(config.partition)}{edges}, seed {seed}"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise UserError where a picture can't be of the type that its name asks for."""
    suffix = Path(path).suffix.lower()
    if suffix not in PICTURE_TYPES:
        raise UserError(
            f"picture {path} has unknown type '{suffix}': name it .png, .pdf or .svg"
            if suffix
            else f"picture {path} has no type: name it {path}.png, or .pdf or .svg"
        )


def draw_partition(
    partition: Partition,
    labels: npt.ArrayLike,
    num_classes: int,
    path: str | os.PathLike[str],
    title: str,
    *,
    domains: npt.ArrayLike | None = None,
    domain_names: Sequence[str] = (),
) -> None:
    """Draw samples per client by class, class shares and, where given, domain shares; statistics as caption.

    Up to 60 clients stand in their own order; more are sorted by their most frequent class, then by size,
    since their numbers couldn't be read anyway. An edge map that isn't blocks groups the clients by edge
    server. ``path`` gets a PNG unless it ends in .pdf or .svg.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    statistics = partition.statistics(labels, num_classes, domains)
    edges = np.zeros(len(statistics.sizes), dtype=np.int64) if partition.edges is None else partition.edges
    order = _order(statistics, np.asarray(edges))
    counts, few = statistics.counts[order], len(order) <= FEW
    panels = 2 if statistics.domain_counts is None else 3

    width = min(14.0, max(7.0, 3.0 + 0.22 * len(order)))
    figure = Figure(figsize=(width, 2.2 + 2.0 * panels), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels, 1, sharex=True, height_ratios=(3, 2, 2)[:panels])
    palette = colours(num_classes)
    handles = stack(axes[0], counts, palette, few)
    stack(axes[1], mixes(counts), palette, few)
    explain(figure, axes[:2], handles, [str(k) for k in range(num_classes)], "class")
    if statistics.domain_counts is not None:
        names = [*domain_names, *map(str, range(len(domain_names), statistics.domain_counts.shape[1]))]
        handles = stack(axes[2], mixes(statistics.domain_counts[order]), colours(len(names), "Set2"), few)
        explain(figure, axes[2:], handles, names, "domain")
        axes[2].set_ylabel("share")

    fits = min(13.0, 110 * width / max(len(title), 1))
    figure.suptitle(title, fontsize=fits, fontweight="bold")
    caption = "\n".join(filter(None, [statistics.line(), statistics.edge_line()]))
    axes[0].set_title(caption, fontsize=9, color="0.35", loc="left", pad=18 if partition.edges else None)
    axes[0].set_ylabel("samples")
    axes[1].set_ylabel("share")
    axes[0].set_ylim(0, 1.04 * max(int(statistics.sizes.max()), 1))
    for shares in axes[1:]:
        shares.set_ylim(0, 1)
    grouped = "" if partition.edges is None else "by edge server"
    sorted_by = "" if few else "by most frequent class, then by size"
    how = ", ".join(filter(None, [grouped, sorted_by]))
    axes[-1].set_xlabel(f"clients, sorted {how}" if how else "client")
    axes[-1].set_xlim(-0.5, len(order) - 0.5)
    if few:
        step = -(-len(order) // 30)
        axes[-1].set_xticks(range(0, len(order), step), [str(i) for i in order[::step]])
    if partition.edges is not None:
        _mark_edges(axes, np.asarray(partition.edges)[order])
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    suffix = Path(path).suffix.lower()
    figure.savefig(path, format=suffix[1:] if suffix in PICTURE_TYPES else "png")


def _order(statistics: Statistics, edges: Ints) -> Ints:
    """Client numbers from left to right."""
    if len(edges) <= FEW:
        return np.argsort(edges, kind="stable")
    return np.lexsort((-statistics.sizes, statistics.counts.argmax(axis=1), edges))


def _mark_edges(axes: Any, edges: Ints) -> None:
    """Lines between the edge servers of the clients from left to right, and their numbers on top."""
    starts = np.flatnonzero(np.diff(edges, prepend=-1))
    for panel in axes:
        for start in starts[1:]:
            panel.axvline(start - 0.5, color="0.2", linewidth=0.8, linestyle=(0, (4, 2)))
    middles = (starts + np.append(starts[1:], len(edges)) - 1) / 2
    every = -(-len(starts) // MARKED_EDGES)
    for start, middle in zip(starts[::every], middles[::every], strict=True):
        axes[0].text(
            middle, 1.01, f"edge {edges[start]}", transform=axes[0].get_xaxis_transform(),
            ha="center", va="bottom", fontsize=7, color="0.2",
        )  # fmt: skip
