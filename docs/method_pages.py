"""The pages of the methods, made while the site is built: a mkdocs hook that writes nothing to ``docs/``.

A method has its page by being listed in ``rayfl.algorithms.FAMILIES``. What stands on it is taken from where
it is kept anyway: the docstring, the Config class and the source of its file, its presets, and its row in the
README's table of methods.
"""

import ast
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfl import checking, costs
from rayfl.algorithms import ALGORITHMS, FAMILIES
from rayfl.loading.experiments import load_experiment
from rayfl.loading.sources import presets
from rayfl.text import in_bytes
from rayfl.training import TrainingConfig

ROOT = Path(__file__).parent.parent


def on_config(config: Any) -> Any:
    """Fill the navigation's entry ``Methods``."""
    pages: list[Any] = [{"Overview": "methods/index.md"}]
    for family, methods in FAMILIES.items():
        pages.append({family.capitalize(): [{title(name): f"methods/{name}.md"} for name in methods]})
    for entry in config.nav:
        if "Methods" in entry:
            entry["Methods"] = pages
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to what is built."""
    from mkdocs.structure.files import File

    made = {"index": overview(), **{name: page(name) for name in ALGORITHMS}}
    for name, content in made.items():
        files.append(File.generated(config, f"methods/{name}.md", content=content))
    return files


def overview() -> str:
    """All methods by family, and the settings that they share."""
    header, rows, note = readme_table()
    parts = ["# Methods", "Each page is made from the method's own file."]
    for family, methods in FAMILIES.items():
        mine = [
            [f"[{row[0]}]({name}.md)", *row[1:]] for name in methods for row in rows if row[0] == f"`{name}`"
        ]
        parts += [f"## {family.capitalize()}", table(header, mine)]
    parts += ["## Accuracy", note, "## Settings of all methods"]
    fields = [field.name for field in dataclasses.fields(TrainingConfig) if field.name != "name"]
    return "\n\n".join([*parts, settings(TrainingConfig, fields)])


def page(name: str) -> str:
    """One method: what it does, what crosses the links, its settings, presets, accuracy and source."""
    method = ALGORITHMS[name]
    module = sys.modules[method.__module__]
    path = Path(inspect.getsourcefile(module) or "").relative_to(ROOT)
    parts = [f"# {title(name)}", *docstring(inspect.getdoc(module) or ""), "## Settings"]
    own = own_settings(method.Config)
    shared = "[the settings of all methods](index.md#settings-of-all-methods)"
    parts.append(f"Besides {shared}, whose defaults may differ here:" if own else f"Only {shared}.")
    parts += [settings(method.Config, own)] if own else []
    parts += ["## Bytes", traffic(f"{name}.digits"), "## Presets"]
    mine = [preset for preset in presets() if preset.partition(".")[0] == name]
    parts.append("\n\n".join(f"`rayfl run {preset}`: {expected(preset)}" for preset in mine))
    parts += ["## Accuracy", accuracy(name), "## Source"]
    code = inspect.getsource(module).split('"""', 2)[2].strip()
    parts.append(f"`{path}`, below its docstring:\n\n```python\n{code}\n```")
    return "\n\n".join(parts)


def title(name: str) -> str:
    """What a method's docstring calls it."""
    return (sys.modules[ALGORITHMS[name].__module__].__doc__ or name).partition(":")[0].partition(".")[0]


def docstring(text: str) -> Iterator[str]:
    """A method's docstring under headings: gist and citation, wire diagram, equation, departures."""
    gist = text.partition("\n\n")[0].partition(": ")[2]
    yield gist[:1].upper() + gist[1:]
    headings = iter(["## Who sends what", "## What is computed"])
    for paragraph in text.split("\n\n")[1:]:
        if paragraph.startswith("    "):
            yield next(headings, "")
            yield paragraph
            continue
        opening, _, rest = paragraph.partition(": ")
        if opening.startswith("Departs from"):
            yield f"## {opening}"
            paragraph = rest[:1].upper() + rest[1:]
        yield linked(paragraph.replace("``", "`"))


def linked(text: str) -> str:
    """Addresses as links."""
    return re.sub(r"https?://[\w./:-]*\w", r"<\g<0>>", text)


def own_settings(config: type) -> list[str]:
    """The fields that a method adds to ``TrainingConfig`` or gives another default."""
    shared = {field.name: field.default for field in dataclasses.fields(TrainingConfig)}
    fields = dataclasses.fields(config)
    return [f.name for f in fields if f.name != "name" and shared.get(f.name, f) != f.default]


def settings(config: type, names: Sequence[str]) -> str:
    """A table of some fields of a Config class."""
    hints = typing.get_type_hints(config, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    meanings = field_docstrings(config)
    rows = [
        [f"`{name}`", checking._wanted(hints[name]), f"`{as_yaml(defaults[name])}`", meanings[name]]
        for name in names
        if not dataclasses.is_dataclass(hints[name])
    ]
    parts = [table(["setting", "value", "default", "meaning"], rows)]
    for name in names:
        if dataclasses.is_dataclass(hints[name]):
            inner = [field.name for field in dataclasses.fields(hints[name])]
            parts += [f"Of `{name}`. {meanings[name]}", settings(hints[name], inner)]
    return "\n\n".join(parts)


def field_docstrings(config: type) -> Mapping[str, str]:
    """Field -> the string below it, of the nearest class that has one."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def as_yaml(value: object) -> str:
    """A default as a file would have it."""
    plain = {None: "null", True: "true", False: "false"}
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return plain[value] if value is None or isinstance(value, bool) else str(value)


def traffic(preset: str) -> str:
    """What a round of a preset sends, link by link: the mean of its first two."""
    config = load_experiment(preset, ["rounds=2"])
    counted = costs.estimate(config)
    sent = {**counted.traffic, ("all", "", ""): counted.ledger.total()}
    rows = [[*line, in_bytes(total / config.rounds)] for line, total in sent.items()]
    intro = (
        f"With `{preset}`, {config.data.num_clients} clients that all take part, counted per receiver by "
        f"`rayfl cost {preset} rounds=2`:"
    )
    return intro + "\n\n" + table(["link", "direction", "kind", "a round"], rows)


def expected(preset: str) -> str:
    """What a preset's own header says will come out."""
    text = (ROOT / "rayfl" / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    comment = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    return comment.partition("Expect: ")[2]


def accuracy(name: str) -> str:
    """A method's row in the README's table of methods."""
    header, rows, _ = readme_table()
    (row,) = [row for row in rows if row[0] == f"`{name}`"]
    about = "[What the accuracy stands on, and why it is no ranking](index.md#accuracy)."
    return table(header[2:], [row[2:]]) + "\n\n" + about


def readme_table() -> tuple[list[str], list[list[str]], str]:
    """Header, rows and the paragraph below of the README's table of methods."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines, _, rest = text.partition("\n## Methods\n")[2].strip().partition("\n\n")
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines())
    return header, rows, rest.partition("\n\n")[0]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
