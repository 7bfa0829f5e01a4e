"""The README's files and commands are the ones that work."""

import re
import shlex
from pathlib import Path

import pytest

import rayfl
from rayfl import cli, loading

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, having: str) -> str:
    """The one fenced block of a language that mentions something."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    (found,) = [text for text in blocks if having in text]
    return str(found)


def commands(name: str) -> list[list[str]]:
    """The arguments of every ``rayfl <name>`` line."""
    lines = re.findall(rf"^(?:\$ )?rayfl {name} ([^#\n]*)", README, re.M)
    return [shlex.split(line) for line in lines]


def test_the_method_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under 40 lines, as printed, by the command printed below it."""
    code = block("python", "class FedAvgM")
    assert len(code.splitlines()) < 40
    (tmp_path / "fedavgm.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (arguments,) = [line for line in commands("run") if "algorithm.name=fedavgm:FedAvgM" in line]
    small = ["rounds=2", "tracking.enabled=false", "--quiet"]
    assert cli.main(["run", *arguments, *small]) == 0
    assert "FINISHED after 2 rounds" in capsys.readouterr().out


def test_the_sweep_file_in_the_readme_is_the_one_in_the_tree() -> None:
    shown = block("yaml", "dirichlet_grid.yaml").split("\n", 1)[1]
    assert shown.strip() == (ROOT / "tune_configs" / "dirichlet_grid.yaml").read_text().strip()


@pytest.mark.parametrize("line", commands("run") + commands("show"), ids=" ".join)
def test_commands_name_settings_that_exist(line: list[str]) -> None:
    if any("fedavgm" in word for word in line) or line[0].startswith("-"):
        return
    loading.load_experiment(line[0], [word for word in line[1:] if "=" in word])


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of it; sweeps have tests of their own."""
    code = block("python", "rayfl.run(")
    (call,) = re.findall(r"^result = (.*)$", code, re.M)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    result = eval(call.replace('["rounds=3"]', '["rounds=1", "tracking.enabled=false"]'), {"rayfl": rayfl})
    assert result.status == "FINISHED"
    assert loading.load_sweep(eval(re.findall(r"rayfl\.sweep\((.*?)\)\n", code, re.S)[0].strip())).cells()
