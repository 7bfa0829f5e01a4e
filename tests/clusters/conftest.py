"""A folder of a user's, with more in it than should be sent."""

from pathlib import Path

import pytest

METHOD = '''"""A method of one's own, in two files."""

from dataclasses import dataclass

from my_helper import NAME
from rayfl.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    """FedAvg."""

    @dataclass(frozen=True, kw_only=True)
    class Config(FedAvg.Config):
        """Its knobs."""

        name: str = NAME
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, found by Python as the command line has it found."""
    folder = tmp_path / "project"
    for place, text in {
        "my_method.py": METHOD,
        "my_helper.py": 'NAME = "my_method:Mine"\n',
        "unused.py": "raise RuntimeError\n",
        "base.yaml": "preset: fedavg.digits\nrounds: 1\n",
        "grids/grid.yaml": "preset: base.yaml\ngrid: {seed: [0, 1]}\n",
        "extra.yaml": "eval_every: 2\n",
        "data/images.bin": "0" * 100,
        ".git/HEAD": "ref",
        "mlruns/0/meta.yaml": "x: 1",
        "rayfl-results/demo.md": "#",
        ".venv/lib/site-packages/installed.py": "VALUE = 1\n",
    }.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder / ".venv/lib/site-packages"))
    monkeypatch.syspath_prepend(str(folder))
    return folder
