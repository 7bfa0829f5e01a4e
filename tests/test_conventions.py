"""What the layout promises, held to: who may import what, and what belongs to every method."""

import ast
import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "rayfl").rglob("*.py"))

ALLOWED = {
    "ray": ("rayfl/actors/", "rayfl/clusters/jobs.py", "rayfl/tuning/"),
    "mlflow": ("rayfl/tracking/",),
    "optuna": ("rayfl/search/study.py",),
    "yaml": ("rayfl/loading/layers.py",),
}
PURE = ("rayfl/algorithms/", "rayfl/models/", "rayfl/devices/", "rayfl/roles.py", "rayfl/host.py",
        "rayfl/messages.py", "rayfl/tree.py", "rayfl/training.py")  # fmt: skip
"""Where no file is touched either."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A source file, which several tests look at."""
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """The top-level modules that a file imports anywhere in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_heavy_modules_are_imported_where_they_belong() -> None:
    wrong = [
        f"{place(path)} imports {module}"
        for path in SOURCES
        for module in imported(path)
        if not place(path).startswith(ALLOWED.get(module, ""))
    ]
    assert wrong == []


def test_parties_touch_no_files() -> None:
    pure = [path for path in SOURCES if place(path).startswith(PURE)]
    assert len(pure) > len(ALGORITHMS)
    for path in pure:
        called = {
            node.func.id
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not {"open"} & called, place(path)
        assert not {"pathlib", "shutil", "tempfile", "subprocess"} & set(imported(path)), place(path)


def test_every_module_says_what_it_is() -> None:
    assert [place(path) for path in SOURCES if not ast.get_docstring(parsed(path))] == []


def module_of(name: str) -> str:
    return ALGORITHMS[name].__module__


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_file_is_its_page(name: str) -> None:
    """Named like the method, with citation, wire diagram and departures in its docstring."""
    assert module_of(name) == f"rayfl.algorithms.{name}"
    page = importlib.import_module(module_of(name)).__doc__ or ""
    assert re.search(r"https://(arxiv\.org|doi\.org)/", page), "no link to the paper"
    assert re.search(r"--+>", page), "no wire diagram"
    assert "Departs from" in page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_comes_with_presets_test_and_readme_row(name: str) -> None:
    for setting in ("mnist5k", "digits"):
        assert (ROOT / "rayfl" / "presets" / f"{name}.{setting}.yaml").exists()
    assert (ROOT / "tests" / "algorithms" / f"test_{name}.py").exists()
    assert re.search(rf"^\| `{name}` \|", (ROOT / "README.md").read_text(), re.M)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_is_configured_by_its_own_frozen_keyword_class(name: str) -> None:
    config = ALGORITHMS[name].Config
    assert config.__module__ == module_of(name)
    parameters = config.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(config))
    assert config().name == name


def unexplained(path: Path) -> Iterator[str]:
    """The fields of a file's Config classes without a string under them. Those of a kind that is explained
    elsewhere, and those that only change a default, need none."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for field, following in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    inherited = field.target.id in {"name", "weights", "drop_last"} and "algorithms" in place(
                        path
                    )
                    grouping = isinstance(field.annotation, ast.Name) and field.annotation.id.endswith(
                        "Config"
                    )
                    explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                    if not (explained or inherited or grouping):
                        yield f"{place(path)}: {field.target.id}"


def test_every_config_field_says_what_it_means() -> None:
    assert [field for path in SOURCES for field in unexplained(path)] == []
