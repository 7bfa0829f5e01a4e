"""The completion scripts: bash really completes; zsh's knows the same words."""

# ruff: noqa: F811 (a fixture that is imported)

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_cli import Call, call  # noqa: F401

DRIVER = """
source ./script
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_shtab_rayfl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "found", "absent"),
    [
        (["ru"], ["run"], ["sweep"]),
        (["run", "fed"], ["fedavg.digits", "fedprox.mnist5k"], ["hsfl.digits", "other.txt"]),
        (["run", "mi"], ["mine.yaml"], ["mine.txt"]),
        (["run", ""], ["fedavg.digits", "mine.yaml", "tune_configs"], ["mine.txt"]),
        (["run", "fedavg.digits", "--qu"], ["--quiet"], ["--json"]),
        (["run", "fedavg.digits", "algorithm.name", "=", "splitfed_v"], ["splitfed_v1"], ["sl"]),
        (["run", "fedavg.digits", "algorithm.name", "="], ["splitfed_v1", "sl"], ["splitfed_v1.digits"]),
        (["run", "fedavg.digits", "--with", "mi"], ["mine.yaml"], ["fedavg.digits"]),
        (["sweep", ""], ["tune_configs/grid.yaml", "mine.yaml"], ["fedavg.digits"]),
        (["sweep", "tune_configs/"], ["tune_configs/grid.yaml"], ["mine.yaml"]),
        (["list", "pre"], ["presets"], ["methods"]),
        (["data", "pr"], ["prepare"], ["info"]),
        (["new-method", "x", "--like", "s"], ["splitfed_v1"], ["fedavg"]),
    ],
)
def test_bash(call: Call, words: list[str], found: list[str], absent: list[str]) -> None:
    Path("script").write_text(call("completion", "bash").out)
    for name in ("mine.yaml", "mine.txt", "tune_configs/grid.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    done = subprocess.run(
        ["bash", "--norc", "-c", DRIVER, "bash", "rayfl", *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    offered = done.stdout.splitlines()
    assert set(found) <= set(offered)
    assert not set(absent) & set(offered)


def test_zsh(call: Call) -> None:
    script = call("completion", "zsh").out
    assert script.startswith("#compdef rayfl\n")
    assert re.search(r"compadd -- .*\bfedavg\.digits ", script)
    assert '"::SOURCE' not in script
    assert ":_rayfl_source_files" in script


def test_an_unknown_shell(call: Call) -> None:
    assert call("completion", "bsh").error == "rayfl: error: unknown shell 'bsh': did you mean 'bash'?"
