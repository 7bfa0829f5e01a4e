"""Building a dataset from files; and by lying here, this file makes ``miniatures`` importable below."""

from pathlib import Path

import pytest
from miniatures import Build

from rayfl.data import DataConfig
from rayfl.data.info import Built
from rayfl.data.layouts import LAYOUTS


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build(name, source)`` with a root of its own."""

    def of(name: str, source: Path | None) -> Built:
        return LAYOUTS[name].build(DataConfig(name=name, root=str(tmp_path / "root")), source)

    return of
