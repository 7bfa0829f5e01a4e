"""Packages against what rayfl asks for: missing, too old, extras, pins, an installation behind its source."""

from importlib import metadata
from pathlib import Path

import pytest
from asking import ask, levels
from packaging.requirements import Requirement

from rayfl.doctor import versions

PROJECT = """\
[project]
name = "rayfl"
requires-python = "{python}"
dependencies = [{dependencies}]
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree that asks for little; what is installed asks for the same."""
    monkeypatch.setattr(versions, "_SOURCE", tmp_path)
    monkeypatch.setattr(versions, "_NAMED", ("packaging",))
    project(tmp_path, "packaging>=20")
    monkeypatch.setattr(versions, "_requires", requires)
    return tmp_path


def project(folder: Path, *dependencies: str, python: str = ">=3.11") -> None:
    listed = ", ".join(f'"{one}"' for one in dependencies)
    (folder / "pyproject.toml").write_text(PROJECT.format(python=python, dependencies=listed))


def requires(name: str) -> list[str]:
    """What installed packages ask for."""
    return {
        "rayfl": ["packaging>=20"],
        "packaging": ["nothere>=1; extra == 'more'", "packaging<1; extra == 'other'"],
    }[name]


def test_all_is_well(source: Path) -> None:
    found = ask("versions", source)
    assert levels(found) == ["ok", "ok"]
    assert f"packaging {metadata.version('packaging')}" in found[1].text


@pytest.mark.parametrize(
    ("dependency", "text", "remedy"),
    [
        ("nowhere>=2", "nowhere is not installed", "pip install 'nowhere>=2'"),
        ("packaging<1", f"packaging {metadata.version('packaging')} is not <1", "pip install 'packaging<1'"),
        ("packaging[more]", "nothere is not installed", "pip install 'nothere>=1'"),
    ],
)
def test_unfit_packages(
    dependency: str, text: str, remedy: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(source, dependency)
    monkeypatch.setattr(
        versions, "_requires", lambda name: [dependency] if name == "rayfl" else requires(name)
    )
    found = ask("versions", source)
    assert levels(found) == ["ok", "problem"]
    assert (found[1].text, found[1].remedy) == (text, remedy)


def test_a_package_for_other_systems_is_not_asked_for(source: Path) -> None:
    project(source, "packaging>=20", "nowhere; sys_platform == 'beos'")
    assert "problem" not in levels(ask("versions", source))


def test_another_python(source: Path) -> None:
    project(source, "packaging>=20", python=">=4")
    assert ask("versions", source)[0].level == "problem"


def test_an_installation_behind_its_source(source: Path) -> None:
    project(source, "packaging>=20", "filelock")
    found = ask("versions", source)[1]
    assert (found.level, "filelock" in found.text) == ("warning", True)
    assert found.remedy == f"pip install -e {source}"


def test_other_releases_than_the_known_ones_are_named(source: Path) -> None:
    known = metadata.version("packaging")
    (source / "constraints.txt").write_text(f"# known\npackaging=={known}\nfilelock==0.0.1\n")
    assert len(ask("versions", source)) == 2
    (source / "constraints.txt").write_text("packaging==0.0.1 ; python_version >= '3'\n")
    last = ask("versions", source)[-1]
    assert (last.level, "packaging" in last.text, "(known: ==0.0.1)" in last.text) == ("ok", True, True)


def test_an_installed_rayfl_is_held_against_its_own_metadata(tmp_path: Path) -> None:
    """Where there is no source tree."""
    python, wanted = versions.asked_for(tmp_path)
    assert python == metadata.metadata("rayfl")["Requires-Python"]
    assert "ray" in {Requirement(line).name for line in wanted}
    assert "pytest" not in {Requirement(line).name for line in wanted}
