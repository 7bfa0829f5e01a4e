"""From a sweep's file to its cells."""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfl import algorithms, checking
from rayfl.config import ExperimentConfig, SweepConfig, When, flatten
from rayfl.errors import UserError
from rayfl.loading.experiments import Layers, method_name, nested, resolve
from rayfl.loading.layers import Nested, Overrides, Source, as_text, lay, pairs, plain, read_yaml
from rayfl.loading.sources import presets
from rayfl.suggest import unknown

_LOG = logging.getLogger("rayfl.config")
_SWEEP_KEYS = ("name", "preset", "set", "grid", "when", "max_concurrent")


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
    for key, value in pairs(overrides):
        sweep = _edit_sweep(sweep, {key: value}, overriding=True)
    sweep = _without_coming(sweep)
    if not sweep.grid:
        raise UserError("a sweep needs a grid of dotted keys and lists, e.g. grid: {seed: [0, 1]}, got none")
    _check_sweep_keys(sweep)
    return sweep


def _without_coming(sweep: SweepConfig) -> SweepConfig:
    """The rows of a paper's table that can't be filled yet are passed by, which is said."""
    grid, passed_by = dict(sweep.grid), []
    for axis, values in sweep.grid.items():
        names = (
            [method_name(lay({}, {axis: value})) for value in values] if axis.startswith("algorithm") else []
        )
        if algorithms.COMING.intersection(name for name in names if name):
            passed_by += [name for name in names if name in algorithms.COMING]
            kept = [value for value, name in zip(values, names, strict=True) if name not in algorithms.COMING]
            if not kept:
                raise UserError(
                    f"none of the methods {', '.join(passed_by)} is in rayfl yet: add one that is"
                )
            grid[axis] = tuple(kept)
    if passed_by:
        _LOG.warning("not in rayfl yet, passed by: %s", ", ".join(passed_by))
    return replace(sweep, grid=grid)


def sweep_cells(sweep: SweepConfig) -> list[ExperimentConfig]:
    """The experiments of a sweep, in grid order and without repeats."""
    _check_sweep_keys(sweep)
    found: dict[str, ExperimentConfig] = {}
    base = nested(sweep.preset) if sweep.preset is not None else {}
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
    return resolve(Layers(base=merged), warn=False)


def _meets(flat: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    for key, wanted in flatten(lay({}, condition)).items():
        actual = flat.get(key)
        if key not in flat or not (actual == wanted or (isinstance(wanted, list) and actual in wanted)):
            return False
    return True


def _sweep_name(source: Source) -> str:
    return "sweep" if isinstance(source, Mapping) else Path(source).stem


def _raw_sweep(source: Source) -> Nested:
    if isinstance(source, Mapping):
        content: Nested = plain(dict(source), "sweep")
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
            name = as_text(value, "name")
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(
                    f"a sweep's name is letters, digits, '_', '.' and '-', got '{name}': change name"
                )
            sweep = replace(sweep, name=name)
        elif key == "preset":
            sweep = replace(sweep, preset=None if value is None else as_text(value, "preset"))
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
    base = nested(sweep.preset) if sweep.preset is not None else {}
    sources = [base, sweep.set, sweep.overrides, *(rule.set for rule in sweep.when)]
    sources += [{axis: item} for axis, values in sweep.grid.items() for item in values]
    names = {name for source in sources if (name := method_name(lay({}, source))) is not None}
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
