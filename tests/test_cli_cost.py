"""``rayfl cost``: tables in four forms, several experiments at once, one-line refusals."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfl import cli
from rayfl.commands import cost as command

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Call the command in an empty folder with nothing prepared: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "data"))

    def do(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["cost", *arguments])
        return code, *capsys.readouterr()

    return do


def test_text(call: Call, tmp_path: Path) -> None:
    """Three tables and what they leave out; that sizes are from class counts stands on stderr.

    digits: 1,437 images less 144 for validation, over 10 clients; 64 to 200 numbers of 4 bytes per sample.
    """
    code, out, err = call("splitfed_v1.digits", "rounds=2", "algorithm.cut_layer=fc1")
    assert code == 0
    titles = ["Sides of the cut, per sample (forward)", "Traffic", "Client memory, one batch"]
    assert [line for line in out.splitlines() if line in titles] == titles
    (activations,) = [
        line.split() for line in out.splitlines() if "activation " in line and "client-main" in line
    ]
    assert activations == [
        *("splitfed_v1", "digits", "mlp", "client-main", "up", "activation"),
        *("1.0", "MB", f"{2 * 1293 * 200 * 4:,}", "0.00", "0.00"),
    ]
    (header,) = [line for line in out.splitlines() if "per round" in line]
    assert re.split(" {2,}", header)[-4:] == ["per round", "total bytes", "total GB", "total GiB"]
    assert "lower bound" in out
    assert (
        err.splitlines()[-1] == "rayfl: note: sizes from class counts: dataset 'digits' isn't prepared here"
    )
    assert not (tmp_path / "data").exists()


def test_several_sources_as_csv(call: Call) -> None:
    """One line each; what a method lacks is empty. The settings hold for all of them."""
    code, out, _ = call("fedavg.digits", "splitfed_v1.digits", "rounds=1", "--format", "csv")
    assert code == 0
    full, split = csv.DictReader(io.StringIO(out))
    assert (full["method"], split["method"]) == ("fedavg", "splitfed_v1")
    assert full["comm/client-main_up_label_bytes"] == "" != split["comm/client-main_up_label_bytes"]
    assert full["rounds"] == split["rounds"] == "1"
    assert int(full["client/params"]) == int(split["client/params"]) + int(split["main/params"])


def test_methods_by_cuts_as_latex(call: Call) -> None:
    """A grid on the command line; FedAvg has no cut and stands there once."""
    code, out, _ = call(
        "splitfed_v1.digits",
        "grid.algorithm.name=[fedavg,splitfed_v1]",
        "grid.algorithm.cut_layer=[fc1,fc2]",
        "rounds=1",
        "--format",
        "latex",
    )
    assert code == 0
    assert out.count(r"\begin{tabular}") == out.count(r"\bottomrule") == 3
    memory = [line for line in out.split("% Client memory")[1].splitlines() if line.endswith(r"\\")]
    assert memory[0].startswith(r"method & data & model & algorithm.cut\_layer & weights")
    assert [line.split(" & ")[:4] for line in memory[1:]] == [
        ["fedavg", "digits", "mlp", "-"],
        [r"splitfed\_v1", "digits", "mlp", "fc1"],
        [r"splitfed\_v1", "digits", "mlp", "fc2"],
    ]


def test_a_sweep_file_without_its_seeds(call: Call, tmp_path: Path) -> None:
    """A row per distinct cell, whatever the seeds."""
    (tmp_path / "s.yaml").write_text(
        "name: s\npreset: fedavg.digits\nset: {rounds: 1}\n"
        "grid: {algorithm.batch_size: [16, 32], seed: [0, 1, 2]}\n"
    )
    code, out, _ = call("s.yaml", "--json")
    assert code == 0
    found = json.loads(out)["experiments"]
    assert [cell["algorithm.batch_size"] for cell in found] == ["16", "32"]
    assert "seed" not in found[0]


def test_json_has_the_rounds(call: Call) -> None:
    """Lines of the ledger round by round, their mean per round and the total in three units."""
    code, out, _ = call("hierfl.digits", "rounds=3", "--json")
    assert code == 0
    content = json.loads(out)
    (cell,) = content["experiments"]
    rounds = {line["round"]: line["bytes"] for line in cell["rounds"] if line["link"] == "edge-cloud"}
    assert set(rounds) == {2}
    total = sum(line["bytes"] for line in cell["rounds"])
    assert cell["total"] == {"bytes": total, "GB": total / 1e9, "GiB": total / 2**30}
    assert sum(cell["bytes_per_round"].values()) == pytest.approx(total / 3)
    assert cell["client_memory"]["total"] > cell["client_memory"]["weights"]
    assert content["accounting"] == "counted"


def test_other_accounting(call: Call) -> None:
    """All ten clients are sent the model though one takes part; the footnote says so."""
    settings = ["fedavg.digits", "algorithm.participation=0.1", "rounds=2"]
    _, out, _ = call(*settings, "--accounting", "paper_hsfp", "--json")
    lines = {
        (line["round"], line["direction"]): line["bytes"]
        for line in json.loads(out)["experiments"][0]["rounds"]
    }
    assert lines[2, "down"] == 10 * lines[2, "up"]
    _, out, _ = call(*settings, "--accounting", "paper_hsfp")
    assert "paper_hsfp: H-SFP's table" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "nosuch"),
        (["fedavg.digits", "--json", "--format", "csv"], "can't both be printed"),
        (["fedavg.digits", "--format", "html"], "html"),
        (["sl.digits", "--accounting", "paper_hsfp"], "fedavg and hierfl only"),
        (["fedavg.digits", "--accounting", "paper"], "unknown accounting 'paper'"),
        (["splitfed_v1.digits", "algorithm.cut_layer=fc9"], "no block is called 'fc9'"),
        (["fedavg.digits", "grid.seed=3"], "grid.seed must be a list"),
    ],
)
def test_mistakes_are_one_line(call: Call, arguments: list[str], message: str) -> None:
    """Exit code 2, nothing on stdout."""
    code, out, err = call(*arguments)
    (line,) = err.splitlines()
    assert (code, out) == (2, "")
    assert line.startswith("rayfl: error: ")
    assert message in line


def test_help_has_examples(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert "rayfl cost splitfed_v1.mnist5k" in out
    assert "--accounting" in out


def test_long_estimates_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every five seconds, and not after the last round."""
    now = iter([0.0, 4.0, 6.0, 6.0, 7.0, 20.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(now))
    tick = command._ticker("fedavg, 1 of 2")
    for done in range(1, 5):
        tick(done, 4)
    assert capsys.readouterr().err == "rayfl: fedavg, 1 of 2: round 2/4\n"
