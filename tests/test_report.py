"""The table of a sweep: what is averaged, what is marked."""

import dataclasses
import math
from typing import Any

import pytest

from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig
from rayfl.data import DataConfig, PartitionConfig
from rayfl.experiment import Result
from rayfl.report.table import cells_frame, coordinates, grid_table, value_label
from rayfl.runs import Stored

IID, SKEWED = {"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.1}
GRID = {"algorithm.name": ("fedavg", "fedprox", "sl"), "data.partition": (IID, SKEWED), "seed": (0, 1)}


def config(method: str, law: dict[str, Any], seed: int) -> ExperimentConfig:
    """One cell of GRID."""
    return ExperimentConfig(
        algorithm=ALGORITHMS[method].Config(),
        data=DataConfig(partition=PartitionConfig(**law)),
        seed=seed,
    )


CELLS = [config(m, law, s) for m in GRID["algorithm.name"] for law in (IID, SKEWED) for s in (0, 1)]


def stored(cell: ExperimentConfig, accuracy: float, status: str = "FINISHED") -> Stored:
    """A result with some accuracy."""
    metrics = {"final/last10_accuracy": accuracy, "comm/total_bytes": 10.0}
    return Stored(Result(status, 10, metrics, [], "ab", cell.cell_hash, "cd", "run"), {}, None)


def frame(outcomes: dict[tuple[str, str, int], Any]) -> Any:
    """The frame of GRID; an outcome is an accuracy or (accuracy, status), what is missing has not run."""
    found: dict[str, Stored | None] = {}
    for cell in CELLS:
        key = (cell.algorithm.name, cell.data.partition.kind, cell.seed)
        if key in outcomes:
            outcome = outcomes[key] if isinstance(outcomes[key], tuple) else (outcomes[key],)
            found[cell.cell_hash] = stored(cell, *outcome)
    return cells_frame("grid", CELLS, GRID, found)


OUTCOMES = {
    ("fedavg", "iid", 0): 0.80,
    ("fedavg", "iid", 1): 0.90,
    ("fedprox", "iid", 0): 0.95,
    ("sl", "iid", 0): 0.70,
    ("sl", "iid", 1): 0.701,
    ("fedavg", "dirichlet", 0): 0.99,
    ("fedavg", "dirichlet", 1): (math.nan, "DIVERGED"),
    ("fedprox", "dirichlet", 0): (math.nan, "DIVERGED"),
    ("fedprox", "dirichlet", 1): (math.nan, "DIVERGED"),
}


def test_one_row_per_cell_whatever_became_of_it() -> None:
    table = frame(OUTCOMES)
    assert len(table) == len(CELLS)
    assert list(table.columns[:4]) == ["algorithm.name", "data.partition", "seed", "status"]
    assert table.status.tolist().count("PENDING") == 3
    assert set(table["data.partition"]) == {"iid", "dirichlet alpha=0.1"}
    assert {"run_id", "weights_sha256", "comm/total_bytes"} <= set(table.columns)


def test_means_marks_and_ranks() -> None:
    table = grid_table(frame(OUTCOMES))
    assert table.columns == ["iid", "dirichlet alpha=0.1"]
    entry = {key: (value.text, value.rank) for key, value in table.entries.items()}
    # (0.8 + 0.9) / 2, sample deviation 0.1 / sqrt(2)
    assert entry["fedavg", "iid"] == ("85.00 ± 7.07", 2)
    assert entry["fedprox", "iid"] == ("95.00 †", 1)
    assert entry["sl", "iid"] == ("70.05 ± 0.07", 0)
    assert entry["fedavg", "dirichlet alpha=0.1"] == ("99.00 ✗1", 0)
    assert entry["fedprox", "dirichlet alpha=0.1"] == ("✗", 0)
    assert entry["sl", "dirichlet alpha=0.1"] == ("—", 0)


def test_ties_go_by_the_digits_shown() -> None:
    outcomes = {("fedavg", "iid", 0): 0.90001, ("fedprox", "iid", 0): 0.90002, ("sl", "iid", 0): 0.5}
    ranks = {row: grid_table(frame(outcomes)).entries[row, "iid"].rank for row in GRID["algorithm.name"]}
    assert ranks == {"fedavg": 1, "fedprox": 1, "sl": 2}


def test_markdown_and_plain_say_the_same() -> None:
    table = grid_table(frame(OUTCOMES))
    lines = table.markdown().splitlines()
    assert lines[0] == "| method | iid | dirichlet alpha=0.1 |"
    assert lines[2] == "| fedavg | <u>85.00 ± 7.07</u> | 99.00 ✗1 |"
    assert lines[3] == "| fedprox | **95.00 †** | ✗ |"
    plain = table.plain().splitlines()
    assert plain[1].split() == ["fedavg", "85.00", "±", "7.07", "99.00", "✗1"]
    assert len({len(line) for line in plain[:4]}) == 1
    assert "\x1b[1m95.00 †\x1b[0m" in table.plain(colour=True)
    assert "\x1b" not in table.plain()


def test_the_caption_states_the_setting() -> None:
    caption = grid_table(frame(OUTCOMES)).caption
    for fact in (
        "test accuracy in %", "sample std", "mnist5k", "iid / dirichlet (niid_bench) alpha=0.1", "10 clients",
        "participation 1", "E=1", "B=32", "10 rounds", "2 seeds", "† fewer seeds", "✗ diverged", "— not run",
    ):  # fmt: skip
        assert fact in caption


def test_coordinates_take_the_value_that_says_most() -> None:
    grid = {"data.partition": (IID, SKEWED, {**SKEWED, "scheme": "hsu"}), "algorithm.lr": (0.05, 0.1)}
    cell = config("fedavg", {**SKEWED, "scheme": "hsu"}, 0)
    assert coordinates(cell, grid) == {
        "data.partition": "dirichlet alpha=0.1 scheme=hsu",
        "algorithm.lr": 0.05,
    }


@pytest.mark.parametrize(
    ("value", "label"),
    [({"kind": "dirichlet", "alpha": 0.1}, "dirichlet alpha=0.1"), (0.00001, "1e-05"), ([1, 2], "[1, 2]"),
     ("cnn", "cnn"), (None, "null"), (3, "3")],
)  # fmt: skip
def test_labels(value: Any, label: str) -> None:
    assert value_label(value) == label


def test_a_frame_that_lost_its_attributes_still_makes_the_table() -> None:
    whole = frame(OUTCOMES)
    bare = whole.copy()
    bare.attrs = {}
    table, expected = grid_table(bare), grid_table(whole)
    assert table.entries == expected.entries
    assert dataclasses.replace(table, caption="") == dataclasses.replace(expected, caption="")
