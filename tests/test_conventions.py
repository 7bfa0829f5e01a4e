"""What the layout promises, held to: who may import what, and what belongs to every method."""

import ast
import dataclasses
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


def imported(path: Path) -> Iterator[str]:
    """The top-level modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_heavy_modules_are_imported_where_they_belong(path: Path) -> None:
    for module in imported(path):
        if module in ALLOWED:
            assert place(path).startswith(ALLOWED[module]), f"{place(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in SOURCES if place(p).startswith(PURE)], ids=place)
def test_parties_touch_no_files(path: Path) -> None:
    tree = ast.parse(path.read_text())
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {"open"} & called
    assert not {"pathlib", "shutil", "tempfile", "subprocess"} & set(imported(path))


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), place(path)


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


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_every_config_field_says_what_it_means(path: Path) -> None:
    """A string under each field of a Config class; fields that only change a default are explained above."""
    for node in ast.walk(ast.parse(path.read_text())):
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
                    assert explained or inherited or grouping, f"{place(path)}: {field.target.id}"
