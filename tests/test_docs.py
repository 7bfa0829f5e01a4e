"""The documentation's commands, files and examples work, and the site builds without a warning."""

import ast
import html
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import commands_in_docs
import numpy as np
import pytest
from commands_in_docs import ROOT, blocks, check, commands, configs, load, shown
from PIL import Image

from rayfl import cli
from rayfl.algorithms import ALGORITHMS
from rayfl.data import DataConfig
from rayfl.data.info import Files
from rayfl.errors import UserError

PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
LINES = [(page, *line) for page, text in PAGES.items() for line in shown(text)]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to stand in, from which modules can be imported."""
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "data"))
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("page", "line", "error"), LINES, ids=[" ".join([page, *line]) for page, line, _ in LINES]
)
def test_commands_are_taken_and_name_settings_that_exist(
    page: str, line: list[str], error: str, reader: Path
) -> None:
    """By rayfl's own parser and loaders, in a folder with the page's own files; mistakes
    that are shown get the answer that is shown."""
    commands_in_docs.write_files(PAGES[page], reader)
    with pytest.raises(UserError, match=f"^{re.escape(error)}$") if error else nullcontext():
        check(line)


@pytest.mark.parametrize("page", PAGES)
def test_configs_load(page: str, reader: Path) -> None:
    """Every YAML block that is an experiment, a sweep, a search or a part of one."""
    commands_in_docs.write_files(PAGES[page], reader)
    for content in configs(PAGES[page]):
        load(content, [], [])


@pytest.mark.parametrize("page", PAGES)
def test_python_is_python(page: str) -> None:
    for block in blocks(PAGES[page], "python"):
        ast.parse(block)


@pytest.mark.slow
def test_the_page_about_methods_shows_a_method_and_tests_that_pass(reader: Path) -> None:
    commands_in_docs.write_files(PAGES["add_a_method.md"], reader)
    (run,) = [line for line in commands(PAGES["add_a_method.md"]) if line[0] == "run"]
    assert cli.main([*run, "rounds=1", "tracking.enabled=false", "--quiet"]) == 0
    shown = vars(importlib.import_module("test_trimmed_mean"))
    tests = [test for name, test in shown.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_the_split_round_that_is_shown_is_the_one_in_the_tree() -> None:
    (shown,) = [text for text in blocks(PAGES["add_a_method.md"], "python") if text.startswith("def round")]
    source = (ROOT / "rayfl" / "algorithms" / "splitfed_v1.py").read_text()
    assert re.sub(r"\s+", " ", shown.replace("self, t)", "self, t: int) -> None")) in re.sub(
        r"\s+", " ", source
    )


def test_own_images_are_prepared_and_trained_on_as_shown(reader: Path) -> None:
    """The page's script, its two commands, and its experiment for one round."""
    page = PAGES["add_a_dataset.md"]
    for block in blocks(page):
        named = re.match(r"# ([\w.]+)\n", block)
        if named:
            (reader / named[1]).write_text(block)
    importlib.import_module("draw_shapes")
    (prepare,) = [line for line in commands(page) if line[:3] == ["data", "prepare", "imagefolder"]]
    (run,) = [line for line in commands(page) if line == ["run", "shapes.yaml"]]
    assert cli.main(prepare) == 0
    assert cli.main([*run, "rounds=1", "tracking.enabled=false", "--quiet"]) == 0


def test_the_layout_that_is_shown_reads_its_files(reader: Path) -> None:
    """Ten folders of five images each, a fifth of which is held out."""
    commands_in_docs.write_files(PAGES["add_a_dataset.md"], reader)
    layout = importlib.import_module("eurosat")
    for place, kind in enumerate(layout.CLASSES):
        folder = reader / "2750" / kind
        folder.mkdir(parents=True)
        for number in range(5):
            Image.fromarray(np.full((64, 64, 3), place, np.uint8)).save(folder / f"{kind}_{number}.jpg")
    built = layout.build_eurosat(DataConfig(root=str(reader)), reader / "2750")
    assert isinstance(built.train, Files)
    assert (len(built.train.names), len(built.test.names), built.num_classes) == (40, 10, 10)
    assert all(
        layout.CLASSES[k] in name for k, name in zip(built.train.labels, built.train.names, strict=True)
    )
    outline = layout.DATASETS["eurosat"].outline(DataConfig())
    assert sum(outline.class_counts) + outline.num_test == 27_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a dead link, a lost anchor or a page outside the navigation stops it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.slow
def test_the_site_needs_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or image of another host."""
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']([^"']+)""", page.read_text()
        )
        assert fetched
        assert not [address for address in fetched if re.match(r"(https?:)?//", address)], page
    for style in site.rglob("*.css"):
        assert not re.findall(r"""(?:url\(|@import )["']?(?:https?:)?//""", style.read_text()), style


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_method_has_a_page(name: str, site: Path) -> None:
    """With its diagram, settings, bytes, presets, figures and source; reachable from every page."""
    text = (site / "methods" / f"{name}.html").read_text()
    for part in (
        "--&gt;",
        f"rayfl run {name}.mnist5k",
        f"rayfl/algorithms/{name}.py",
        "Departs from",
    ):
        assert part in text
    assert re.search(r"<td>\d+\.\d %", text)
    assert f"methods/{name}.html" in (site / "index.html").read_text()


@pytest.mark.slow
def test_a_page_lists_what_is_its_own_to_set(site: Path) -> None:
    """With type, default and meaning; a default that the method changes keeps the meaning of its parent."""
    assert settings_of(site / "methods" / "fedprox.html") == [
        ["stragglers", "a number of at least 0 and below 1", "0.0",
         "Fraction of participants that can't finish their local epochs in time."],
        ["mu", "a number of at least 0", "0.01", "Strength mu of the pull."],
    ]  # fmt: skip
    (weights, *_) = [row for row in settings_of(site / "methods" / "mergesfl.html") if row[0] == "weights"]
    assert weights[1:3] == ["one of size, batch, uniform", "batch"]
    assert weights[3].startswith("What a participant's share of an average goes by")
    assert settings_of(site / "methods" / "splitfed_v3.html")[0][0] == "cut_layer"


def settings_of(page: Path) -> list[list[str]]:
    """The rows of the first table below the heading Settings."""
    body = page.read_text().partition('id="settings"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td>(.*?)</td>", row, re.S) for row in body.split("</tr>")]
    return [[html.unescape(re.sub(r"<.*?>", "", cell)) for cell in row] for row in rows if row]
