"""``rayfl new-method``: what it writes runs, holds its own test and passes the linter; what it refuses."""

# ruff: noqa: F811 (a fixture that is imported)

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import Call, call  # noqa: F401

from rayfl.scaffold import PARENTS


@pytest.mark.slow
@pytest.mark.parametrize("like", PARENTS)
def test_what_is_written_works(call: Call, like: str, tmp_path: Path) -> None:
    """The printed command runs, the written test passes, the linter finds nothing."""
    name = f"scaffold_of_{like}_with_quite_a_long_name"
    outcome = call("new-method", name, "--like", like)
    assert outcome.code == 0
    files = [tmp_path / file for file in (f"{name}.py", f"{name}.yaml", f"test_{name}.py")]
    assert outcome.out.startswith(f"written: {name}.py, {name}.yaml, test_{name}.py\n")
    assert f"\n  rayfl run {name}.yaml\n  pytest test_{name}.py\n" in outcome.out
    for file in files:
        assert not {"my_method", "MyMethod"} & set(file.read_text().replace(":", " ").split()), file
    run = call(
        "run",
        f"{name}.yaml",
        "rounds=1",
        "algorithm.local_steps=1",
        "tracking.enabled=false",
        "--json",
        "--quiet",
    )
    assert (run.code, run.json["status"]) == (0, "FINISHED")
    spec = importlib.util.spec_from_file_location(files[2].stem, files[2])
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    checks = [value for key, value in vars(written).items() if key.startswith("test_")]
    assert len(checks) == 3
    for check in checks:
        check()
    ruff = [sys.executable, "-m", "ruff"]
    paths = [str(file) for file in files if file.suffix == ".py"]
    rules = ["--isolated", "--line-length", "110"]
    select = ["--select", "E,F,W,B,UP,SIM,C4,RUF", "--ignore", "RUF009"]
    subprocess.run([*ruff, "check", *rules, *select, *paths], check=True, capture_output=True)
    subprocess.run([*ruff, "format", "--check", *rules, *paths], check=True, capture_output=True)


@pytest.mark.slow
def test_the_written_test_is_found_by_pytest(call: Call, tmp_path: Path) -> None:
    """From another folder too: the method's module lies beside its test."""
    assert call("new-method", "mine", "--dir", "methods/new", "--json").json["files"] == [
        "methods/new/mine.py", "methods/new/mine.yaml", "methods/new/test_mine.py",
    ]  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "methods/new"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_another_folder_is_named_in_what_to_do_next(call: Call) -> None:
    out = call("new-method", "mine", "--dir", "my methods").out
    assert "\n  cd 'my methods'\n  rayfl run mine.yaml\n" in out
    assert "class Mine(FedAvg):" in Path("my methods/mine.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["FedAvgM"], "got 'FedAvgM': e.g. fed_avg_m"),
        (["my-method"], "e.g. my_method"),
        (["2fast"], "e.g. my_method"),
        (["class"], "e.g. my_method"),
        (["../evil"], "e.g. evil"),
        (["fedavg"], "take another, e.g. my_fedavg"),
        (["torch"], "take another, e.g. my_torch"),
        (["random"], "take another, e.g. my_random"),
        (["mine", "--like", "hsf"], "did you mean 'hsfl'?"),
        (["mine", "--dir", "taken.yaml"], "can't write to 'taken.yaml'"),
        (["taken"], "'taken.yaml' is there already"),
        ([], "NAME"),
    ],
)
def test_what_is_refused(call: Call, arguments: list[str], part: str) -> None:
    """In one line, and nothing is written or overwritten."""
    Path("taken.yaml").write_text("mine: 1\n")
    outcome = call("new-method", *arguments)
    assert outcome.code == 2
    assert part in outcome.error
    assert [path.name for path in Path().iterdir()] == ["taken.yaml"]
    assert Path("taken.yaml").read_text() == "mine: 1\n"
