"""Stacked bars, one stack per client, in colours that can be told apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def stack(axes: Any, values: npt.NDArray[Any], palette: Sequence[Any], few: bool) -> list[Any]:
    """Stack the columns of ``values`` [n, K] over the clients; one handle per column."""
    n = len(values)
    tops = np.cumsum(values, axis=1)
    handles = []
    for k, colour in enumerate(palette):
        below, above = tops[:, k] - values[:, k], tops[:, k]
        if few:
            handles.append(
                axes.bar(np.arange(n), values[:, k], 0.85, bottom=below, color=colour, linewidth=0)
            )
        else:
            # One polygon per column instead of n bars: ten thousand rectangles would take seconds.
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


def colours(count: int, few: str = "tab10") -> list[Any]:
    """``count`` colours: of the palette ``few``, of one of twenty, or along a scale."""
    from matplotlib import colormaps

    if count <= 20:
        palette = colormaps[few if count <= colormaps[few].N else "tab20"]
        return [palette(k) for k in range(count)]
    return [colormaps["turbo"](k / (count - 1)) for k in range(count)]


def explain(figure: Any, axes: Any, handles: Sequence[Any], names: Sequence[str], title: str) -> None:
    """A legend beside ``axes``, or a colour scale where there are too many names."""
    if len(names) <= 20:
        axes[0].legend(
            handles,
            names,
            title=title,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            fontsize=8,
            ncols=1 if len(names) <= 12 else 2,
            reverse=True,
            frameon=False,
        )
    else:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        scale = ScalarMappable(Normalize(0, len(names) - 1), cmap="turbo")
        figure.colorbar(scale, ax=list(axes), label=title, aspect=40)
