"""From presets, files and ``key=value`` to configs: the only reader of YAML.

Everything is a layer of nested keys, laid over the one before: defaults < preset < ``--with`` files <
``key=value``. A key may be written as a dotted path wherever keys are written.
"""

import datetime
import itertools
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rayfl import algorithms, checking, weights
from rayfl.config import ExperimentConfig, SweepConfig, When, flatten
from rayfl.data import knobs as law_knobs
from rayfl.data import load_partition
from rayfl.errors import UserError
from rayfl.suggest import unknown

_LOG = logging.getLogger("rayfl.config")
# YAML 1.1 takes 1e-3, without a dot, for text.
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+")
_PRESETS = Path(__file__).parent / "presets"
_SWEEP_KEYS = ("name", "preset", "set", "grid", "when", "max_concurrent")

Nested = dict[str, Any]
Source = str | Path | Mapping[str, Any]
Overrides = Sequence[str] | Mapping[str, Any]
"""``["algorithm.lr=0.1"]`` or ``{"algorithm.lr": 0.1}``."""


@dataclass
class _Layers:
    """What a config is made of, by who said it."""

    base: Nested = field(default_factory=dict)
    """The preset's word: knobs that another method lacks fall away."""
    user: Nested = field(default_factory=dict)
    """The user's word: what can't be followed is refused."""


def presets() -> list[str]:
    """The names of rayfl's presets."""
    return sorted(file.name.removesuffix(".yaml") for file in _PRESETS.glob("*.yaml"))


def load_experiment(
    source: Source | ExperimentConfig, overrides: Overrides = (), with_files: Sequence[str | Path] = ()
) -> ExperimentConfig:
    """A checked config from a preset's name, a YAML file, nested keys or another config.

    Raises UserError, in one line, for whatever can't be meant.
    """
    layers = _Layers(base=_nested(source))
    for file in with_files:
        lay(layers.user, read_yaml(file))
    for key, value in _pairs(overrides):
        lay(layers.user, {key: value})
    return _resolve(layers, warn=True)


def load_sweep(
    source: Source | SweepConfig, overrides: Overrides = (), with_files: Sequence[str | Path] = ()
) -> SweepConfig:
    """A checked sweep. ``grid.seed=[0,1]`` edits the grid, ``set.rounds=5`` the settings that the grid may
    overrule, ``rounds=5`` all cells. ``grid.seed=null`` takes an axis away.

    Raises UserError, in one line, for whatever can't be meant.
    """
    if isinstance(source, SweepConfig):
        sweep = source
    else:
        sweep = _edit_sweep(SweepConfig(name=_sweep_name(source)), _raw_sweep(source))
    for file in with_files:
        sweep = _edit_sweep(sweep, _flat_sweep(read_yaml(file)), overriding=True)
    for key, value in _pairs(overrides):
        sweep = _edit_sweep(sweep, {key: value}, overriding=True)
    if not sweep.grid:
        raise UserError("a sweep needs a grid of dotted keys and lists, e.g. grid: {seed: [0, 1]}, got none")
    _check_sweep_keys(sweep)
    return sweep


def dump(config: ExperimentConfig) -> str:
    """YAML that loads back to an equal config."""
    text: str = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    return text


def parse_override(text: str) -> tuple[str, Any]:
    """The dotted key and the value of ``key=value``; the value is YAML."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"an override looks like key=value, got '{text}': write e.g. algorithm.lr=0.05")
    try:
        return key, _plain(yaml.safe_load(value), key)
    except yaml.YAMLError as error:
        raise UserError(f"can't read the value of '{text}' as YAML ({_place(error)}): quote it") from error


def _pairs(overrides: Overrides) -> Iterable[tuple[str, Any]]:
    if isinstance(overrides, str):
        raise UserError(f"overrides must be a list, got '{overrides}': write ['{overrides}']")
    if isinstance(overrides, Mapping):
        return [(key, _plain(value, key)) for key, value in overrides.items()]
    return map(parse_override, overrides)


def read_yaml(path: str | Path) -> Nested:
    """The keys of a YAML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"can't read '{path}': {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not text: a YAML file is needed") from error
    except yaml.YAMLError as error:
        raise UserError(f"'{path}' is not YAML ({_place(error)}): correct it there") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"'{path}' must hold keys and values, got {type(content).__name__}: see rayfl show")
    plain: Nested = _plain(content, str(path))
    return plain


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


def sweep_cells(sweep: SweepConfig) -> list[ExperimentConfig]:
    """The experiments of a sweep, in grid order and without repeats."""
    _check_sweep_keys(sweep)
    found: dict[str, ExperimentConfig] = {}
    base = _nested(sweep.preset) if sweep.preset is not None else {}
    for values in itertools.product(*sweep.grid.values()):
        point = dict(zip(sweep.grid, values, strict=True))
        chosen = [sweep.set, point]
        if sweep.when:
            flat = flatten(_cell(base, chosen).to_dict())
            chosen += [rule.set for rule in sweep.when if _meets(flat, rule.condition)]
        config = _cell(base, [*chosen, sweep.overrides])
        found.setdefault(config.cell_hash, config)
    return list(found.values())


def _cell(base: Nested, layers: Iterable[Mapping[str, Any]]) -> ExperimentConfig:
    """One cell; a knob that its method lacks falls away, whoever set it: other cells have it."""
    merged = lay({}, base)
    for layer in layers:
        lay(merged, layer)
    return _resolve(_Layers(base=merged), warn=False)


def _meets(flat: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    for key, wanted in flatten(lay({}, condition)).items():
        actual = flat.get(key)
        if key not in flat or not (actual == wanted or (isinstance(wanted, list) and actual in wanted)):
            return False
    return True


def _resolve(layers: _Layers, *, warn: bool) -> ExperimentConfig:
    """Choose the method, drop what it lacks, check the rest."""
    named = [_method_name(layer) for layer in (layers.base, layers.user)]
    name = named[1] or named[0] or "fedavg"
    method = algorithms.find(name)
    knobs = checking.knobs(method)
    base = lay({}, layers.base)
    section = base.get("algorithm") or {}
    lost: list[str] = []
    if not warn:
        lost = [key for key in section if key not in knobs]
    elif named[1] is not None:
        before = checking.knobs(algorithms.find(named[0] or "fedavg"))
        lost = [key for key in section if key not in knobs and key in before]
    for key in lost:
        del base["algorithm"][key]
    if lost and warn:
        fallen = ", ".join(f"algorithm.{key}" for key in lost)
        _LOG.warning("the preset's %s fell away: method '%s' has no such knob", fallen, name)
    config = checking.check(lay(base, layers.user), method)
    config = _with_weights_hash(_with_file_hash(config))
    law, asked = config.data.partition, flatten(layers.user)
    if warn and "data.partition.alpha" in asked and "alpha" not in law_knobs(law):
        _LOG.warning(
            "data.partition.alpha has no effect with data.partition.kind=%s: set kind to dirichlet", law.kind
        )
    return config


def _with_file_hash(config: ExperimentConfig) -> ExperimentConfig:
    """A partition file is known by what it holds, so that another file of its name is another experiment."""
    law = config.data.partition
    if law.kind != "file" or law.path is None or law.file_hash is not None:
        return config
    law = replace(law, path=os.path.abspath(law.path), file_hash=load_partition(law.path).hash)
    return replace(config, data=replace(config.data, partition=law))


def _with_weights_hash(config: ExperimentConfig) -> ExperimentConfig:
    """So is a file of pretrained weights."""
    model = config.model
    if model.weights is None or model.weights_hash is not None:
        return config
    path = os.path.abspath(model.weights)
    return replace(config, model=replace(model, weights=path, weights_hash=weights.file_hash(path)))


def _method_name(layer: Nested) -> str | None:
    section = layer.get("algorithm")
    if section is None:
        return None
    if not isinstance(section, dict):
        raise UserError(
            f"algorithm must be a mapping of knobs, got {section!r}: set algorithm.name={section}"
        )
    name = section.get("name")
    if name is not None and not isinstance(name, str):
        raise UserError(f"algorithm.name must be a method's name, got {name!r}: see rayfl list methods")
    return name


def _nested(source: Source | ExperimentConfig) -> Nested:
    """The layer that a source stands for, its own preset included."""
    if isinstance(source, ExperimentConfig):
        plain = source.to_dict()
        own = type(source.algorithm)(name=source.algorithm.name)
        # What is a default of this method must not become a choice once another method is put in.
        plain["algorithm"] = {
            key: value
            for key, value in plain["algorithm"].items()
            if key == "name" or getattr(source.algorithm, key) != getattr(own, key)
        }
        return plain
    if isinstance(source, Mapping):
        content = lay({}, _plain(dict(source), "config"))
    else:
        content = lay({}, _read_source(source))
    if "grid" in content:
        raise UserError("this describes a sweep (it has a grid), one experiment was wanted: use rayfl sweep")
    preset = content.pop("preset", None)
    return content if preset is None else lay(_nested(_text(preset, "preset")), content)


def _read_source(source: str | Path) -> Nested:
    text = str(source)
    if isinstance(source, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return read_yaml(source)
    if text not in presets():
        raise unknown("preset", text, presets(), "a file's name ends in .yaml")
    return read_yaml(_PRESETS / f"{text}.yaml")


def _sweep_name(source: Source) -> str:
    return "sweep" if isinstance(source, Mapping) else Path(source).stem


def _raw_sweep(source: Source) -> Nested:
    if isinstance(source, Mapping):
        content: Nested = _plain(dict(source), "sweep")
    elif not isinstance(source, Path) and str(source) in presets():
        raise UserError(f"'{source}' is a preset of one experiment, a sweep file was wanted: use rayfl run")
    else:
        content = read_yaml(source)
    for key in content:
        if key.split(".")[0] not in _SWEEP_KEYS:
            if key.split(".")[0] in checking.SECTIONS and "grid" not in content:
                raise UserError("this describes one experiment (it has no grid): use rayfl run")
            near = f"did you mean 'set: {{{key}: ...}}'?" if key.split(".")[0] in checking.SECTIONS else None
            raise UserError(f"unknown key '{key}' of a sweep: {near or 'known: ' + ', '.join(_SWEEP_KEYS)}")
    return _flat_sweep(content)


def _flat_sweep(content: Nested) -> Nested:
    """A sweep file's keys as the overrides that would say the same."""
    flat: Nested = {}
    for key, value in content.items():
        if key in ("set", "grid"):
            if value is not None and not isinstance(value, dict):
                raise UserError(
                    f"{key} must map dotted keys to values, got {value!r}: e.g. {key}: {{seed: 0}}"
                )
            entries = flatten(value or {}) if key == "grid" else (value or {})
            flat.update({f"{key}.{path}": item for path, item in entries.items()})
        else:
            flat[key] = value
    return flat


def _edit_sweep(sweep: SweepConfig, edits: Mapping[str, Any], *, overriding: bool = False) -> SweepConfig:
    """The sweep with some keys of a sweep file changed; other keys are settings of all cells."""
    for key, value in edits.items():
        head, _, path = key.partition(".")
        if head == "grid" and path:
            grid = {axis: values for axis, values in sweep.grid.items() if axis != path or value is not None}
            sweep = replace(sweep, grid=grid if value is None else {**grid, path: _axis(path, value)})
        elif head == "set" and path:
            sweep = replace(sweep, set={**sweep.set, path: value})
        elif key == "when":
            sweep = replace(sweep, when=tuple(map(_rule, _list(value, "when"))))
        elif key == "name":
            name = _text(value, "name")
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(
                    f"a sweep's name is letters, digits, '_', '.' and '-', got '{name}': change name"
                )
            sweep = replace(sweep, name=name)
        elif key == "preset":
            sweep = replace(sweep, preset=None if value is None else _text(value, "preset"))
        elif key == "max_concurrent":
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UserError(
                    f"max_concurrent must be a whole number of at least 1, got {value!r}: 2 is usual"
                )
            sweep = replace(sweep, max_concurrent=value)
        elif overriding:
            _refuse_axis(sweep, key, value)
            sweep = replace(sweep, overrides=lay(lay({}, sweep.overrides), {key: value}))
        else:
            raise unknown("key of a sweep", key, _SWEEP_KEYS)
    return sweep


def _refuse_axis(sweep: SweepConfig, key: str, value: Any) -> None:
    """A setting of all cells can't be one that the grid varies: whoever wins, the other is lost."""
    for path in flatten(lay({}, {key: value})) or [key]:
        for axis, values in sweep.grid.items():
            inside = any(
                isinstance(item, Mapping) and path in flatten(lay({}, {axis: item})) for item in values
            )
            if inside or axis == path or axis.startswith(path + "."):
                raise UserError(
                    f"'{path}' varies over the grid's '{axis}' and can't be set for all cells: "
                    f"use grid.{axis}=[...] to change its values"
                )


def _axis(path: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(
            f"grid.{path} must be a list of values, got {value!r}: write e.g. grid.{path}=[{value}]"
        )
    return tuple(value)


def _rule(rule: Any) -> When:
    if (
        not isinstance(rule, dict)
        or set(rule) != {"if", "set"}
        or not all(isinstance(part, dict) and part for part in rule.values())
    ):
        raise UserError(
            f"a rule of when is {{if: {{key: value}}, set: {{key: value}}}}, got {rule!r}: "
            f"see rayfl sweep --help"
        )
    return When(condition=rule["if"], set=rule["set"])


def _check_sweep_keys(sweep: SweepConfig) -> None:
    """Every dotted key must mean something in at least one cell."""
    base = _nested(sweep.preset) if sweep.preset is not None else {}
    sources = [base, sweep.set, sweep.overrides, *(rule.set for rule in sweep.when)]
    sources += [{axis: item} for axis, values in sweep.grid.items() for item in values]
    names = {name for source in sources if (name := _method_name(lay({}, source))) is not None}
    # The preset's own method counts even where the grid replaces it: its knobs fall away then.
    methods = [algorithms.find(name) for name in sorted(names or {"fedavg"})]
    places: list[tuple[str, Mapping[str, Any]]] = [(f"'{sweep.preset}'", base), ("set", sweep.set)]
    places += [("an override", sweep.overrides)]
    places += [("the grid", {axis: item}) for axis, values in sweep.grid.items() for item in values]
    for rule in sweep.when:
        places += [("when", rule.condition), ("when", rule.set)]
    for where, keys in places:
        checking.check_keys(lay({}, keys), methods, where)


def _list(value: Any, key: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UserError(f"{key} must be a list, got {value!r}: put '- ' before each entry")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{key} must be text, got {value!r}: put it in quotes")
    return value


def _plain(value: Any, where: str) -> Any:
    """YAML's or a caller's value as plain JSON: tuples as lists, 1e-3 as a number, dates as text."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UserError(f"keys must be text, got {key!r} in '{where}': put it in quotes")
        return {key: _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
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
