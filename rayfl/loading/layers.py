"""YAML, overrides and nested keys: what configs are written in. The only reader of YAML.

Everything is a layer of nested keys, laid over the one before. A key may be written as a dotted path wherever
keys are written.
"""

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rayfl.errors import UserError

# YAML 1.1 takes 1e-3, without a dot, for text.
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+")

Nested = dict[str, Any]
Source = str | Path | Mapping[str, Any]
Overrides = Sequence[str] | Mapping[str, Any]
"""``["algorithm.lr=0.1"]`` or ``{"algorithm.lr": 0.1}``."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML takes the last without a word."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node: Any = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"'{key.value}' is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return node


def _parse(text: str, where: str) -> Any:
    """YAML as plain values. Raises YAMLError for all that is none."""
    try:
        return plain(yaml.load(text, _Loader), where)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except UserError:
        raise
    except ValueError as error:
        # What looks like a date and is none.
        raise yaml.YAMLError(str(error)) from None


def dump_yaml(nested: Mapping[str, Any]) -> str:
    """YAML that loads back to equal keys."""
    text: str = yaml.safe_dump(dict(nested), sort_keys=False, allow_unicode=True)
    return text


def parse_override(text: str) -> tuple[str, Any]:
    """The dotted key and the value of ``key=value``; the value is YAML."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"a setting looks like key=value, got '{text}': write e.g. algorithm.lr=0.05")
    try:
        return key, _parse(value, key)
    except yaml.YAMLError as error:
        where = _place(error)
        raise UserError(
            f"can't read the value of '{text}' as YAML ({where}): see rayfl run --help"
        ) from error


def lay(below: Nested, above: Mapping[str, Any]) -> Nested:
    """Lay nested or dotted keys over others, in place; a mapping joins a mapping, anything else replaces."""
    for path, value in above.items():
        *parents, leaf = path.split(".")
        target = below
        for parent in parents:
            inner = target.get(parent)
            if not isinstance(inner, dict):
                inner = target[parent] = {}
            target = inner
        if isinstance(value, Mapping):
            inner = target.get(leaf)
            target[leaf] = lay(inner if isinstance(inner, dict) else {}, value)
        else:
            target[leaf] = value
    return below


def read_yaml(path: str | Path) -> Nested:
    """The keys of a YAML file."""
    try:
        content = _parse(Path(path).read_text(encoding="utf-8"), str(path))
    except OSError as error:
        names = [file.name for file in Path(path).parent.glob("*.y*ml")]
        near = get_close_matches(Path(path).name, names, n=1) if isinstance(error, FileNotFoundError) else []
        hint = f": did you mean '{Path(path).with_name(near[0])}'?" if near else ""
        raise UserError(f"can't read '{path}': {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not text: a YAML file is needed") from error
    except yaml.YAMLError as error:
        raise UserError(f"'{path}' is not YAML ({_place(error)}): correct it there") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"'{path}' must hold keys and values, got {type(content).__name__}: see rayfl show")
    return content


def pairs(overrides: Overrides) -> Iterable[tuple[str, Any]]:
    """Dotted keys and plain values."""
    if isinstance(overrides, str):
        raise UserError(f"overrides must be a list, got '{overrides}': write ['{overrides}']")
    if isinstance(overrides, Mapping):
        return [(key, plain(value, key)) for key, value in overrides.items()]
    return map(parse_override, overrides)


def plain(value: Any, where: str) -> Any:
    """YAML's or a caller's value as plain JSON: tuples as lists, 1e-3 as a number, dates as text."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UserError(f"keys must be text, got {key!r} in '{where}': put it in quotes")
        return {key: plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"numbers must be finite, got {value} in '{where}': leave it out or set null")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"a value of type {type(value).__name__} in '{where}' is not plain: numbers, text and lists are"
    )


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return problem if mark is None else f"{problem}, line {mark.line + 1}"


def as_text(value: Any, key: str) -> str:
    """A value that must be text."""
    if not isinstance(value, str):
        raise UserError(f"{key} must be text, got {value!r}: put it in quotes")
    return value
