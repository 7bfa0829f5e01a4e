"""The partition as a picture: who holds what."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.config import DataConfig
from rayfl.data.partition import Partition

FEW = 60
"""Up to so many clients have a bar of their own; above, bars merge into a skyline."""


def describe(config: DataConfig, seed: int) -> str:
    """A dataset and how it is divided, as a title."""
    law = config.partition
    scheme = f" {law.scheme}" if law.kind == "dirichlet" else ""
    alpha = f", alpha {law.alpha:g}" if law.kind in ("dirichlet", "quantity") else ""
    return f"{config.name}, {law.kind}{scheme}{alpha}, seed {seed}"


def draw_partition(
    partition: Partition, labels: npt.ArrayLike, num_classes: int, path: str | os.PathLike[str], title: str
) -> None:
    """Write a PNG: samples per client by class above, class shares below, the statistics as caption.

    Up to 60 clients stand in their own order; more are sorted by their most frequent class, then by size,
    since their numbers couldn't be read anyway.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    statistics = partition.statistics(labels, num_classes)
    counts, num_clients = statistics.counts, len(statistics.sizes)
    few = num_clients <= FEW
    if not few:
        counts = counts[np.lexsort((-statistics.sizes, counts.argmax(axis=1)))]
    mix = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = _colours(num_classes)

    figure = Figure(
        figsize=(min(14.0, max(7.0, 3.0 + 0.22 * num_clients)), 6.2), dpi=130, layout="constrained"
    )
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    handles = _stack(upper, counts, colours, few)
    _stack(lower, mix, colours, few)

    figure.suptitle(title, fontsize=13, fontweight="bold")
    upper.set_title(statistics.line(), fontsize=9, color="0.35", loc="left")
    upper.set_ylabel("samples")
    lower.set_ylabel("share")
    upper.set_ylim(0, 1.04 * max(int(statistics.sizes.max()), 1))
    lower.set_ylim(0, 1)
    lower.set_xlabel("client" if few else "clients, sorted by most frequent class, then by size")
    lower.set_xlim(-0.5, num_clients - 0.5)
    if few:
        step = -(-num_clients // 30)
        lower.set_xticks(range(0, num_clients, step))
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    if num_classes <= 20:
        figure.legend(
            handles,
            [str(k) for k in range(num_classes)],
            title="class",
            loc="outside right center",
            fontsize=8,
            reverse=True,
            frameon=False,
        )
    else:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        scale = ScalarMappable(Normalize(0, num_classes - 1), cmap="turbo")
        figure.colorbar(scale, ax=[upper, lower], label="class", aspect=40)
    figure.savefig(path, format="png")


def _stack(axes: Any, values: npt.NDArray[Any], colours: list[Any], few: bool) -> list[Any]:
    """Stack the columns of ``values`` [n, K] over the clients; one handle per class."""
    n = len(values)
    tops = np.cumsum(values, axis=1)
    handles = []
    for k, colour in enumerate(colours):
        below, above = tops[:, k] - values[:, k], tops[:, k]
        if few:
            handles.append(
                axes.bar(np.arange(n), values[:, k], 0.85, bottom=below, color=colour, linewidth=0)
            )
        else:
            # One polygon per class instead of n bars: ten thousand rectangles would take seconds.
            edges = np.arange(n + 1) - 0.5
            handles.append(
                axes.fill_between(
                    edges,
                    np.append(below, below[-1]),
                    np.append(above, above[-1]),
                    step="post",
                    color=colour,
                    linewidth=0,
                )
            )
    return handles


def _colours(num_classes: int) -> list[Any]:
    from matplotlib import colormaps

    if num_classes <= 20:
        palette = colormaps["tab10" if num_classes <= 10 else "tab20"]
        return [palette(k) for k in range(num_classes)]
    return [colormaps["turbo"](k / (num_classes - 1)) for k in range(num_classes)]
