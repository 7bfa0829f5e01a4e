"""Pictures of a run's rounds: what is drawn, and what is left out."""

import hashlib
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from rayfl.pictures import ByClient, Lines, Picture, draw

HISTORY: list[dict[str, float]] = [
    {"round": 0, "loss": 2.0},
    {"round": 1, "loss": 1.5, "m/depth/client0": 1, "m/depth/client10": 2, "m/r_q50": 0.5},
    {"round": 2, "loss": 1.0, "m/depth/client0": 3, "m/depth/client2": 1, "m/depthless/client4": 9},
    {"round": 3, "loss": 0.5, "m/depth/client2": 2, "m/r_q50": 0.25},
]


def drawn(picture: Picture, history: Any = HISTORY) -> Figure:
    figure = Figure()
    picture.draw(figure, history)
    return figure


def test_by_client() -> None:
    """A row per client in the order of numbers, a column per round, a gap where a client sat out."""
    axes, _ = drawn(ByClient("m/depth", "cuts")).axes
    (image,) = axes.images
    expected = [[1, 3, np.nan], [np.nan, 1, 2], [2, np.nan, np.nan]]
    assert np.array_equal(np.ma.filled(image.get_array(), np.nan), expected, equal_nan=True)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2", "10"]
    assert list(axes.get_yticks()) == [0, 1, 2]
    left, right, bottom, top = image.get_extent()
    assert (left, right, bottom, top) == (0.5, 3.5, 2.5, -0.5)
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("cuts", "round", "client")


def test_rounds_stand_where_they_are() -> None:
    """A round of which nothing is known leaves an empty column, not a shift of those behind it."""
    history = [{"round": t, **({"m/depth/client0": t} if t != 3 else {})} for t in range(1, 6)]
    axes, _ = drawn(ByClient("m/depth", "cuts"), history).axes
    (image,) = axes.images
    found = np.ma.filled(image.get_array(), np.nan)
    assert np.array_equal(found, [[1, 2, np.nan, 4, 5]], equal_nan=True)


@pytest.mark.parametrize("history", [[], HISTORY[:1]])
def test_nothing_to_show(history: list[dict[str, float]]) -> None:
    """Empty axes with their title rather than a failure."""
    (axes,) = drawn(ByClient("m/depth", "cuts"), history).axes
    assert not axes.images
    (lines,) = drawn(Lines({"median": ["m/r_q50"]}), history).axes
    assert not lines.lines


def test_lines() -> None:
    """A panel per group; a line through the rounds that have the metric, named by its last part."""
    top, bottom = drawn(Lines({"losses": ["loss", "gone"], "median": ["m/r_q50"]})).axes
    (loss,), (median,) = top.lines, bottom.lines
    assert loss.get_xydata().tolist() == [[0, 2.0], [1, 1.5], [2, 1.0], [3, 0.5]]
    assert median.get_xydata().tolist() == [[1, 0.5], [3, 0.25]]
    assert [text.get_text() for text in bottom.get_legend().get_texts()] == ["r_q50"]
    assert [text.get_text() for text in top.get_legend().get_texts()] == ["loss"]
    assert (top.get_title(), bottom.get_title(), bottom.get_xlabel()) == ("losses", "median", "round")


def test_files(tmp_path: Path) -> None:
    """One PNG for each name, whole, the same bytes twice; the user's matplotlib is left alone."""
    before = matplotlib.get_backend(auto_select=False)
    wanted: dict[str, Picture] = {"depth": ByClient("m/depth", "cuts"), "loss": Lines({"loss": ["loss"]})}
    digests = []
    for _ in range(2):
        draw(wanted, HISTORY, tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["depth.png", "loss.png"]
        digests.append([hashlib.sha256((tmp_path / f"{n}.png").read_bytes()).hexdigest() for n in wanted])
    assert digests[0] == digests[1]
    assert matplotlib.image.imread(tmp_path / "depth.png").shape[:2] == (600, 840)
    assert matplotlib.get_backend(auto_select=False) == before


def test_no_pictures_no_files(tmp_path: Path) -> None:
    draw({}, HISTORY, tmp_path)
    assert not list(tmp_path.iterdir())
