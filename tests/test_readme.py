"""The README's files and commands are the ones that work."""

import re
from pathlib import Path

import pytest
from commands_in_docs import ROOT, blocks, check, commands

import rayfl
from rayfl import cli
from rayfl.loading.sweeps import load_sweep

README = (ROOT / "README.md").read_text()


def block(language: str, having: str) -> str:
    """The one fenced block of a language that mentions something."""
    (found,) = [text for text in blocks(README, language) if having in text]
    return found


def test_the_method_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under 40 lines, as printed, by the command printed below it."""
    code = block("python", "class FedAvgM")
    assert len(code.splitlines()) < 40
    (tmp_path / "fedavgm.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (arguments,) = [line for line in commands(README) if "algorithm.name=fedavgm:FedAvgM" in line]
    small = ["rounds=2", "tracking.enabled=false", "--quiet"]
    assert cli.main([*arguments, *small]) == 0
    assert "FINISHED after 2 rounds" in capsys.readouterr().out


def test_the_sweep_file_in_the_readme_is_the_one_in_the_tree() -> None:
    shown = block("yaml", "dirichlet_grid.yaml").split("\n", 1)[1]
    assert shown.strip() == (ROOT / "tune_configs" / "dirichlet_grid.yaml").read_text().strip()


@pytest.mark.parametrize("line", commands(README), ids=" ".join)
def test_commands_name_settings_that_exist(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rayfl's own parser and loaders, beside the README's own method."""
    (tmp_path / "fedavgm.py").write_text(block("python", "class FedAvgM"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    check(line)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of it; sweeps have tests of their own."""
    code = block("python", "rayfl.run(")
    (call,) = re.findall(r"^result = (.*)$", code, re.M)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    result = eval(call.replace('["rounds=3"]', '["rounds=1", "tracking.enabled=false"]'), {"rayfl": rayfl})
    assert result.status == "FINISHED"
    assert load_sweep(eval(re.findall(r"rayfl\.sweep\((.*?)\)\n", code, re.S)[0].strip())).cells()
