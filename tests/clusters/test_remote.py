"""The two scripts that run on the cluster."""

import ast
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rayfl import __version__
from rayfl.clusters.remote import check


def test_the_same_version_with_all_it_needs_is_no_trouble() -> None:
    assert check.trouble(__version__) == ""


def test_another_version_is_named_with_both_ways_out() -> None:
    found = check.trouble("9.9")
    assert f"has rayfl {__version__}, this was sent by 9.9" in found
    assert "--ship-rayfl" in found


def test_no_rayfl_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "has no rayfl: install rayfl 9.9 there" in check.trouble("9.9")


def test_what_a_shipped_rayfl_lacks_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing and too old, but not what only an extra asks for."""
    needs = ["numpy>=1", "torch>=99", "nowhere-to-be-found>=2", "alsonot; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    found = check.trouble(__version__)
    assert f"torch>=99 (it has {metadata.version('torch')})" in found
    assert "nowhere-to-be-found>=2" in found
    assert "numpy" not in found
    assert "alsonot" not in found


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert "the cluster has Python 3.9, rayfl needs 3.11" in check.trouble(__version__)


def test_an_old_python_can_read_the_check() -> None:
    """It is there to say that Python is too old, so it must not fail by being too new."""
    ast.parse(Path(check.__file__).read_text(), feature_version=(3, 8))
