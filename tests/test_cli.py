"""The commands: exit codes, one-line errors, JSON, what stands on stdout and what on stderr."""

import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import rayfl
from rayfl import cli
from rayfl.commands import COMMANDS
from rayfl.config import SweepConfig
from rayfl.errors import RunFailed, UserError
from rayfl.loading.experiments import load_experiment

SMALL = [
    "fedavg.digits",
    "rounds=2",
    "data.name=synthetic",
    "data.synthetic={num_train: 60, num_test: 20, num_classes: 3, height: 8, width: 8}",
    "data.num_clients=3",
    "data.partition.min_size=5",
    "tracking.enabled=false",
]


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line of stdout."""
        content: dict[str, Any] = json.loads(
            self.out.splitlines()[-1], parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
        )
        return content

    @property
    def error(self) -> str:
        """The only line on stderr."""
        (line,) = self.err.splitlines()
        assert line.startswith("rayfl: error: ")
        return line


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Outcome]:
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path_factory.getbasetemp() / "rayfl-data"))

    def do(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = cli.main(arguments)
        return Outcome(code, *capsys.readouterr())

    return do


Call = Callable[..., Outcome]


def test_a_run_ends_with_a_summary(call: Call) -> None:
    outcome = call("run", *SMALL)
    assert outcome.code == 0
    assert "FINISHED after 2 rounds" in outcome.out
    assert "rayfl ui --out rayfl-results" in outcome.out
    rounds = [line.split()[1] for line in outcome.err.splitlines() if line.startswith("round ")]
    assert rounds == ["0/2", "1/2", "2/2"]
    assert Path("rayfl-results").is_dir()


def test_resuming_what_has_ended_says_that_the_result_is_old(call: Call) -> None:
    assert "earlier" not in call("run", *SMALL, "rounds=1").out
    again = call("run", *SMALL, "rounds=1", "--resume")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("FINISHED after 1 round, in an earlier run: nothing was run now")
    assert "earlier" not in call("run", *SMALL, "rounds=1").out


def test_json_is_the_last_line_and_the_only_one(call: Call) -> None:
    outcome = call("run", *SMALL, "--json", "--quiet", "--out", "elsewhere", "seed=3")
    assert (outcome.code, outcome.err, len(outcome.out.splitlines())) == (0, "", 1)
    result = outcome.json
    assert result["status"] == "FINISHED"
    assert 0 <= result["metrics"]["global/test_accuracy"] <= 1
    assert result["cell_hash"] == load_experiment(SMALL[0], [*SMALL[1:], "seed=3"]).cell_hash
    assert len(result["weights_sha256"]) == 64
    assert result["partition_hash"]
    assert Path("elsewhere").is_dir()
    assert not Path("rayfl-results").exists()
    again = call("run", *SMALL, "seed=3", "--json", "--quiet", "--out", "third").json
    assert again["weights_sha256"] == result["weights_sha256"]
    assert (
        call("run", *SMALL, "seed=4", "--json", "--quiet").json["weights_sha256"] != result["weights_sha256"]
    )


def test_a_diverged_run_fails_and_its_json_has_no_nan(call: Call) -> None:
    outcome = call("run", *SMALL, "rounds=5", "algorithm.lr=1e30", "--json", "--quiet")
    assert (outcome.code, outcome.json["status"]) == (1, "DIVERGED")
    assert outcome.json["metrics"]["global/test_loss"] is None


def test_settings_may_stand_on_both_sides_of_options(call: Call) -> None:
    Path("mine.yaml").write_text("rounds: 7\nseed: 7\n")
    outcome = call("show", "fedavg.digits", "eval_every=3", "--with", "mine.yaml", "rounds=8")
    shown = yaml.safe_load(outcome.out)
    assert (shown["eval_every"], shown["rounds"], shown["seed"]) == (3, 8, 7)


def failing(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


def test_what_a_run_raises_decides_the_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rayfl, "run", failing(UserError("no\nroom")))
    outcome = call("run", "fedavg.digits")
    assert (outcome.code, outcome.error) == (2, "rayfl: error: no room")

    monkeypatch.setattr(rayfl, "run", failing(RunFailed("client 7, round 2")))
    outcome = call("run", "fedavg.digits")
    assert (outcome.code, outcome.error) == (1, "rayfl: error: client 7, round 2")

    cause = RunFailed("client 7, round 2")
    cause.__cause__ = ValueError("boom c7")
    monkeypatch.setattr(rayfl, "run", failing(cause))
    outcome = call("run", "fedavg.digits")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-2:] == ["ValueError: boom c7", "rayfl: error: client 7, round 2"]

    monkeypatch.setattr(rayfl, "run", failing(ZeroDivisionError("oops")))
    outcome = call("run", "fedavg.digits")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1] == "rayfl: error: ZeroDivisionError: oops"


def test_an_interrupted_command_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rayfl, "run", failing(KeyboardInterrupt()))
    outcome = call("run", "fedavg.digits", "data.partition={kind: iid}")
    assert outcome.code == 130
    assert outcome.err == (
        "rayfl: interrupted: go on with rayfl run fedavg.digits 'data.partition={kind: iid}' --resume\n"
    )


@pytest.mark.parametrize(("status", "code"), [("FINISHED", 0), ("DIVERGED", 0), ("FAILED", 1)])
def test_a_sweep(call: Call, monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    from rayfl import sweeps

    asked: list[Any] = []

    def fake(sweep: SweepConfig, *options: Any) -> pd.DataFrame:
        asked[:] = [sweep.cells(), *options[:-1]]
        frame = pd.DataFrame(
            {
                "algorithm.name": ["fedavg", "hsfl"],
                "seed": [0, 0],
                "status": ["FINISHED", status],
                "final/last10_accuracy": [0.5, float("nan")],
            }
        )
        frame.attrs = {"name": "x", "axes": {"algorithm.name": ["fedavg", "hsfl"], "seed": ["0"]}}
        return frame

    monkeypatch.setattr(sweeps, "run_sweep", fake)
    Path("grid.yaml").write_text("preset: fedavg.digits\ngrid: {seed: [0, 1]}\n")
    Path("f.yaml").write_text("algorithm: {lr: 0.25}\n")
    options = ["--retry-failed", "--max-concurrent", "3", "--out", "o", "--with", "f.yaml", "rounds=1"]
    outcome = call("sweep", "grid.yaml", *options, "--json")
    assert outcome.code == code
    cells, *others = asked
    assert [(cell.seed, cell.rounds, cell.algorithm.lr) for cell in cells] == [(0, 1, 0.25), (1, 1, 0.25)]
    assert others == ["o", True, 3]
    cells = outcome.json["cells"]
    assert [(cell["status"], cell["final/last10_accuracy"]) for cell in cells] == [
        ("FINISHED", 0.5),
        (status, None),
    ]
    assert "50.00" in outcome.json["table"]
    plain = call("sweep", "grid.yaml")
    assert "50.00" in plain.out
    assert ("--retry-failed" in plain.err) == (code == 1)


def test_a_quiet_sweep_shows_no_progress(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayfl import sweeps
    from rayfl.progress import Progress

    def fake(sweep: Any, out: str, retry: bool, most: int | None, show: Progress) -> pd.DataFrame:
        show.begin(1)
        show.say("a line")
        show.row("cell", 1, {"round": 0.0})
        show.tick()
        show.end("cell", "FINISHED", {})
        show.close()
        frame = pd.DataFrame({"seed": [0], "status": ["FINISHED"], "final/last10_accuracy": [0.5]})
        frame.attrs = {"name": sweep.name, "axes": {"seed": ["0"]}}
        return frame

    monkeypatch.setattr(sweeps, "run_sweep", fake)
    Path("grid.yaml").write_text("grid: {seed: [0]}\n")
    outcome = call("sweep", "grid.yaml", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("methods", "splitfed_v1"),
        ("datasets", "mnist5k"),
        ("models", "resnet18"),
        ("presets", "hsfl.mnist5k"),
        ("partitions", "dirichlet/niid_bench"),
    ],
)
def test_lists(call: Call, kind: str, some: str) -> None:
    lines = call("list", kind).out.splitlines()
    (line,) = [line for line in lines if line.split()[0] == some]
    described = {row["name"]: row["description"] for row in call("list", kind, "--json").json[kind]}
    assert described[some]
    assert line.split(maxsplit=1)[1] == described[some]
    assert len(described) == len(lines)


def test_show_is_yaml_that_loads_back_and_tells_the_difference(call: Call, tmp_path: Path) -> None:
    outcome = call("show", "hsfl.mnist5k", "algorithm.lr=1e-3")
    (tmp_path / "shown.yaml").write_text(outcome.out)
    assert load_experiment("shown.yaml") == load_experiment("hsfl.mnist5k", ["algorithm.lr=1e-3"])
    assert "# algorithm.lr: 0.001, in hsfl.mnist5k: 0.02" in outcome.out.splitlines()
    shown = call("show", "hsfl.mnist5k", "algorithm.lr=1e-3", "--json").json
    assert shown["changed"] == {"algorithm.lr": [0.02, 0.001]}
    assert shown["cell_hash"] == load_experiment("shown.yaml").cell_hash


def test_show_lists_a_sweeps_cells(call: Call) -> None:
    Path("grid.yaml").write_text("preset: fedavg.digits\ngrid: {seed: [0, 1], algorithm.lr: [0.1]}\n")
    outcome = call("show", "grid.yaml")
    assert outcome.out.splitlines()[0] == "grid: 2 cells; what the grid sets:"
    shown = call("show", "grid.yaml", "--json").json
    assert [(cell["seed"], cell["algorithm.lr"]) for cell in shown["cells"]] == [(0, 0.1), (1, 0.1)]


def test_a_knob_that_a_method_lacks_is_a_dash(call: Call) -> None:
    grid = "{algorithm.name: [fedavg, splitfed_v1], algorithm.cut_layer: [fc1, null]}"
    Path("grid.yaml").write_text(f"preset: fedavg.digits\ngrid: {grid}\n")
    rows = [line.split() for line in call("show", "grid.yaml").out.splitlines()[1:]]
    assert [row[1:] for row in rows] == [
        ["algorithm.name", "algorithm.cut_layer"],
        ["fedavg", "-"],
        ["splitfed_v1", "fc1"],
        ["splitfed_v1", "null"],
    ]
    cells = call("show", "grid.yaml", "--json").json["cells"]
    assert ["algorithm.cut_layer" in cell for cell in cells] == [False, True, True]
    changed = call("show", "fedavg.digits", "algorithm.name=fedprox").out
    assert '# algorithm.name: "fedprox", in fedavg.digits: "fedavg"' in changed
    assert "# algorithm.mu: 0.01, in fedavg.digits: -" in changed


@pytest.mark.parametrize(("command", "named"), [("run", True), ("cost", True), ("sweep", False)])
def test_help_says_what_source_may_be(call: Call, command: str, named: bool) -> None:
    text = call(command, "--help").out
    assert ("SOURCE is the name of a preset" in text, "SOURCE is a YAML file" in text) == (named, not named)


def test_partition_shows_who_holds_what(call: Call) -> None:
    arguments = ["partition", *SMALL, "data.partition={kind: pathological, classes_per_client: 1}"]
    outcome = call(*arguments, "--picture", "who.png", "--save", "who.npz")
    assert outcome.code == 0
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = [line.split() for line in outcome.out.splitlines()[:4]]
    assert header[:2] == ["client", "samples"]
    assert [[cell == "." for cell in row[2:]].count(False) for row in rows] == [1, 1, 1]
    shown = call(*arguments, "--json").json
    assert [sum(counts) for counts in shown["counts"]] == shown["sizes"]
    back = call("partition", *SMALL, "data.partition={kind: file, path: who.npz}", "--json").json
    assert back["partition_hash"] == shown["partition_hash"]
    assert "can't write" in call(*arguments, "--picture", "no/such/folder.png").error


def test_partition_shows_edges_where_the_method_has_some(call: Call) -> None:
    three_tiers = call("partition", "hsfl.digits")
    assert three_tiers.out.splitlines()[0].split()[:6] == ["client", "edge", "samples", "class", "0", "class"]
    assert "\n2 edges, " in three_tiers.out
    two_tiers = call("partition", "fedavg.digits")
    assert "edge" not in two_tiers.out


def test_warnings_are_lines_of_their_own(call: Call) -> None:
    outcome = call("show", "fedprox.digits", "data.partition.kind=iid", "data.partition.alpha=0.1")
    (line,) = outcome.err.splitlines()
    assert line.startswith("rayfl: warning: data.partition.alpha has no effect")
    assert outcome.code == 0
    assert not logging.getLogger("rayfl").handlers


def test_a_method_of_the_users_own_is_found_in_this_folder(call: Call) -> None:
    Path("my_method_of_this_test.py").write_text(
        "from rayfl.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    )
    outcome = call("run", *SMALL, "algorithm.name=my_method_of_this_test:Mine", "--json", "--quiet")
    assert outcome.code == 0
    plain = call("run", *SMALL, "--json", "--quiet").json
    assert outcome.json["weights_sha256"] == plain["weights_sha256"]


def test_ui_serves_the_right_store_on_loopback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    stores: list[str] = []

    class Server:
        def __init__(self, command: list[str], start_new_session: bool, env: dict[str, str]) -> None:
            assert start_new_session
            assert env["PATH"] == os.environ["PATH"]
            commands.append(command)
            stores.append(env["MLFLOW_BACKEND_STORE_URI"])

        def poll(self) -> int:
            return 0

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Server)
    Path("there").mkdir()
    Path("there/mlflow.db").touch()
    assert call("ui", "--out", "there", "--port", "50123").code == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    assert call("ui", "--port", "50123").code == 0
    here = Path.cwd()
    assert stores == [f"sqlite:///{here / 'there' / 'mlflow.db'}", f"sqlite:///{here / 'other.db'}"]
    assert all(command[command.index("--host") + 1] == "127.0.0.1" for command in commands)
    assert all(command[command.index("--port") + 1] == "50123" for command in commands)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
    assert "http://elsewhere:5000" in call("ui").out
    assert len(commands) == 2


@pytest.mark.parametrize("command", sorted(command.name for command in COMMANDS))
def test_help_has_examples(call: Call, command: str) -> None:
    outcome = call(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"\n  rayfl {command}" in outcome.out.split("examples:")[1]


@pytest.mark.slow
def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    script = (
        "import sys\nfrom rayfl.cli import main\nassert main(['--help']) == 0\n"
        "heavy = {'torch', 'ray', 'mlflow', 'numpy', 'pandas', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "assert main(['list', 'presets']) == 0\n"
        "print(sorted((heavy - {'yaml'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines().count("[]") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["client_actors=4", "cpus_per_actor=1000"], r"4 client actors with 1000 CPU .*there are \d+ CPU"),
        (["gpus_per_actor=0.25"], r"0\.25 GPU each don't fit: there are \d+ CPU and 0 GPU"),
        (["gpus_per_actor=1.5"], r"gpus_per_actor=1\.5 .*: use 1 or 2$"),
    ],
)
def test_a_fleet_without_room_is_refused_before_anything_slow(settings: list[str], said: str) -> None:
    """One line with both numbers, without torch or Ray having been imported."""
    arguments = ["run", "fedavg.digits", "fleet.kind=ray", *(f"fleet.{setting}" for setting in settings)]
    script = (
        f"import sys\nfrom rayfl.cli import main\nprint(main({arguments!r}))\n"
        "print(sorted({'torch', 'ray', 'mlflow'} & set(sys.modules)))"
    )
    here = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    here.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=here
    )
    assert done.stdout == "2\n[]\n"
    (line,) = done.stderr.splitlines()
    assert re.search(said, line), line


@pytest.mark.slow
def test_as_a_process() -> None:
    command = [sys.executable, "-m", "rayfl"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split()[0] == "rayfl"
    wrong = subprocess.run([*command, "runn"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "rayfl: error: unknown command 'runn': did you mean 'run'?\n"


def test_nothing_stays_behind_in_the_process(call: Call) -> None:
    before = list(warnings.filters)
    call("list", "models")
    assert list(warnings.filters) == before
    assert not logging.getLogger("rayfl").handlers
