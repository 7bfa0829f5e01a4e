"""What newcomers get wrong: one line that names what was probably meant, and exit code 2."""

# ruff: noqa: F811 (a fixture that is imported)

from pathlib import Path

import pytest
from test_cli import SMALL, Call, call  # noqa: F401

DIGITS = ["run", "fedavg.digits"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["runn"], "unknown command 'runn': did you mean 'run'?"),
        (["fedavg.digits"], "did you mean 'rayfl run fedavg.digits'?"),
        (["mine.yaml"], "did you mean 'rayfl run mine.yaml'?"),
        (["run", "--quiet"], "SOURCE is missing (a preset's name or a YAML file)"),
        (["run", "fedavg.digit"], "did you mean 'fedavg.digits'?"),
        (["run", "fedavg"], "did you mean 'fedavg.digits' or 'fedavg.mnist5k'?"),
        (["run", "fedavg.cifar10"], "did you mean 'fedavg.digits' or 'fedavg.mnist5k'?"),
        (["run", "FedAvg.digits"], "did you mean 'fedavg.digits'?"),
        (["run", "fedavg.digits.yaml"], "did you mean the preset 'fedavg.digits'?"),
        (["run", "mine"], "did you mean the file 'mine.yaml'?"),
        (["run", "min.yaml"], "No such file or directory: did you mean 'mine.yaml'?"),
        (["run", "none.yml"], "No such file"),
        ([*DIGITS, "--out", ""], "the output folder has no name"),
        (["tune", "fedavg.digits"], "use rayfl run"),
        (["run", "."], "see rayfl list presets"),
        (["run", "grid.yaml"], "use rayfl sweep"),
        (
            ["run", "rounds=5", "hsfl.digits"],
            "SOURCE comes before the settings, got 'rounds=5': write hsfl.d",
        ),
        ([*DIGITS, "lr=0.1"], "did you mean 'algorithm.lr'?"),
        ([*DIGITS, "learnig_rate=0.1"], "did you mean 'algorithm.lr'?"),
        ([*DIGITS, "rounds=-1"], "rounds must be"),
        ([*DIGITS, "seed=[1,2]"], "several values make the grid of a sweep"),
        ([*DIGITS, "rounds"], "a setting looks like key=value, got 'rounds'"),
        ([*DIGITS, "rounds", "5"], "write rounds=5"),
        ([*DIGITS, "rounds", "=", "5"], "write rounds=5"),
        ([*DIGITS, "rounds=", "5"], "write rounds=5"),
        ([*DIGITS, "rounds", "=5"], "write rounds=5"),
        ([*DIGITS, "--rounds", "5"], "unknown option '--rounds': a setting has no dashes, write rounds=5"),
        ([*DIGITS, "--rounds=5"], "write rounds=5"),
        ([*DIGITS, "data.partition={kind:", "iid}"], "needs quotes: write data.partition='{kind: iid}'"),
        ([*DIGITS, "“rounds=5”"], "quotes must be straight ones"),
        ([*DIGITS, "algorithm.name=nowhere:Method"], "nowhere"),
        ([*DIGITS, "--resum"], "did you mean '--resume'?"),
        ([*DIGITS, "--output", "x"], "did you mean '--out'?"),
        (["list", "method"], "unknown kind 'method': did you mean 'methods'?"),
        (["list"], "kind is missing (methods, datasets"),
        (["list", "methods", "x"], "what is 'x'?"),
        (["data"], "action is missing (one of prepare, list, info)"),
        (["sweep", "fedavg.digits"], "use rayfl run"),
        (["sweep", "mine.yaml"], "use rayfl run"),
        (["sweep", "grid"], "did you mean 'grid.yaml'?"),
        (["sweep", "a.yaml", "--max-concurrent", "0"], "at least 1"),
        (["ui"], "rayfl-results"),
        (["partition", *SMALL, "data.num_clients=5000"], "5000"),
        (["cost", "fedavg.digits", "hsfl.digits", "rounds", "5"], "write rounds=5"),
    ],
)
def test_a_mistake(call: Call, arguments: list[str], part: str) -> None:
    Path("mine.yaml").write_text("preset: fedavg.digits\nrounds: 2\n")
    Path("grid.yaml").write_text("preset: fedavg.digits\ngrid: {seed: [0, 1]}\n")
    outcome = call(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert part in outcome.error


@pytest.mark.parametrize("arguments", [["help"], ["help", "run"], ["version"], ["-v"]])
def test_what_other_tools_call_it(call: Call, arguments: list[str]) -> None:
    outcome = call(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: rayfl" if "help" in arguments else "rayfl ")


def test_several_sources_are_no_mistake_of_cost(call: Call) -> None:
    """Words without '=' that follow each other are sources there."""
    outcome = call("cost", "fedavg.digits", "sl.digits", "hsfl.digits", "rounds=1", "--json")
    assert [row["method"] for row in outcome.json["experiments"]] == ["fedavg", "sl", "hsfl"]
