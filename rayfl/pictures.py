"""Pictures of a run's rounds, drawn from its rows: a method names those it wants."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rayfl import checkpoint

History = Sequence[Mapping[str, float]]
"""One row of metrics per round."""

MOST_NAMED = 40
"""Up to so many clients, or whole values, are labelled."""


class Picture(Protocol):
    """What a picture shows."""

    def draw(self, figure: Any, history: History) -> None:
        """Draw on a matplotlib figure."""


@dataclass(frozen=True)
class ByClient:
    """Rounds by clients, each field coloured by the metric ``<name>/client<i>``."""

    name: str
    title: str

    def draw(self, figure: Any, history: History) -> None:
        prefix = f"{self.name}/client"
        clients = sorted(
            {int(key.removeprefix(prefix)) for row in history for key in row if key.startswith(prefix)}
        )
        axes = figure.subplots()
        axes.set(title=self.title, xlabel="round", ylabel="client")
        known = [i for i, row in enumerate(history) if any(key.startswith(prefix) for key in row)]
        if not known:
            return
        rounds = history[known[0] : known[-1] + 1]
        table = [[row.get(f"{prefix}{i}", float("nan")) for row in rounds] for i in clients]
        first, last = rounds[0]["round"], rounds[-1]["round"]
        extent = (first - 0.5, last + 0.5, len(clients) - 0.5, -0.5)
        image = axes.imshow(table, aspect="auto", interpolation="nearest", extent=extent)
        if len(clients) <= MOST_NAMED:
            axes.set_yticks(range(len(clients)), [str(i) for i in clients], fontsize=6)
        seen = sorted({value for row in table for value in row if value == value})
        counted = len(seen) <= MOST_NAMED and all(float(value).is_integer() for value in seen)
        figure.colorbar(image, ax=axes, ticks=seen if counted else None)


@dataclass(frozen=True)
class Graph:
    """Clients on a circle; a line joins i to j where ``<name>/client<i>`` was j, thicker the more rounds."""

    name: str
    title: str

    def draw(self, figure: Any, history: History) -> None:
        prefix = f"{self.name}/client"
        met = Counter(
            tuple(sorted((int(key.removeprefix(prefix)), int(value))))
            for row in history
            for key, value in row.items()
            if key.startswith(prefix)
        )
        axes = figure.subplots()
        axes.set(title=self.title, aspect="equal")
        axes.axis("off")
        clients = sorted({client for pair in met for client in pair})
        angles = [2 * math.pi * i / max(len(clients), 1) for i in range(len(clients))]
        place = {i: (math.sin(a), math.cos(a)) for i, a in zip(clients, angles, strict=True)}
        # A pair is told by both, but for one that was left alone later.
        for (i, j), count in sorted(met.items()):
            share = count / max(met.values())
            axes.plot(*zip(place[i], place[j], strict=True), color="C0", alpha=share, linewidth=4 * share)
        for i, (x, y) in place.items():
            axes.plot(x, y, "o", color="C1", markersize=3 if len(place) > MOST_NAMED else 12)
            if len(place) <= MOST_NAMED:
                axes.text(x, y, str(i), ha="center", va="center", fontsize=7)


@dataclass(frozen=True)
class Lines:
    """Metrics over rounds, one panel for each group: title -> names."""

    panels: Mapping[str, Sequence[str]]

    def draw(self, figure: Any, history: History) -> None:
        every = figure.subplots(len(self.panels), sharex=True, squeeze=False)[:, 0]
        for axes, (title, names) in zip(every, self.panels.items(), strict=True):
            for name in names:
                points = [(row["round"], row[name]) for row in history if name in row]
                if points:
                    axes.plot(*zip(*points, strict=True), marker=".", label=name.rpartition("/")[2])
            axes.set_title(title, fontsize=8)
            if axes.lines:
                axes.legend(fontsize=6, ncols=4)
        every[-1].set_xlabel("round")


def draw(wanted: Mapping[str, Picture], history: History, folder: Path) -> None:
    """Write each picture to ``<name>.png`` in ``folder``."""
    if not wanted:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for name, picture in wanted.items():
        figure = Figure(figsize=(7, 5), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        picture.draw(figure, history)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        checkpoint.write_whole(folder / f"{name}.png", buffer.getvalue())
