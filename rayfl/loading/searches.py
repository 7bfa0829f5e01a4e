"""From a search's file to what is searched."""

import dataclasses
import json
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rayfl import algorithms, checking
from rayfl.config import ExperimentConfig
from rayfl.data import outline
from rayfl.errors import UserError
from rayfl.loading.domains import read_domains
from rayfl.loading.experiments import Layers, method_name, nested, resolve
from rayfl.loading.layers import Nested, Overrides, Source, lay, pairs, plain, read_yaml
from rayfl.loading.sources import presets
from rayfl.search.config import SearchConfig
from rayfl.search.space import Sample
from rayfl.suggest import unknown
from rayfl.tasks import TASKS

_OWN = {"name", "preset", "set", "search", "metric"}
"""Keys that need more than a check of their type."""
_PLAIN = {field.name for field in dataclasses.fields(SearchConfig)} - _OWN - {"base", "overrides"}
_KEYS = {*_OWN, *_PLAIN, "mode"}
_LARGE_IS_GOOD = ("accuracy", "dice", "iou", "f1")
"""Endings of metrics whose mode goes without saying."""


def load_search(
    source: Source | SearchConfig, overrides: Overrides = (), with_files: Sequence[str | Path] = ()
) -> SearchConfig:
    """A search whose keys and values are right. ``trials=30`` edits the search,
    ``search.algorithm.lr={uniform: [0, 1]}`` what it draws from (null takes a path away), ``set.rounds=5``
    the settings that a sample may overrule, ``rounds=5`` all trials.

    Raises UserError, in one line, for whatever can't be meant.
    """
    if isinstance(source, SearchConfig):
        content, settings = _written(source), dict(source.overrides)
    else:
        content, settings = _read(source), {}
    for file in with_files:
        _edit(content, settings, read_yaml(file))
    for key, value in pairs(overrides):
        _edit(content, settings, {key: value})
    search = _build(content, settings)
    _check_settings(search)
    for sample in search.space().examples():
        _try(search, sample)
    return search


def search_cells(search: SearchConfig, sample: Sample) -> tuple[ExperimentConfig, ...]:
    """The experiments of a sample, one for each seed; a knob that its method lacks falls away."""
    merged = lay({}, search.base)
    for layer in (search.set, sample, search.overrides):
        lay(merged, layer)
    return tuple(
        resolve(Layers(base=lay(lay({}, merged), {"seed": seed})), warn=False) for seed in search.seeds
    )


def _read(source: Source) -> Nested:
    if isinstance(source, Mapping):
        content: Nested = plain(dict(source), "search")
    elif not isinstance(source, Path) and str(source) in presets():
        raise UserError(f"'{source}' is a preset of one experiment, a search file was wanted: use rayfl run")
    else:
        content = {"name": Path(source).stem, **read_yaml(source)}
    if "grid" in content:
        raise UserError("this describes a sweep (it has a grid), a search was wanted: use rayfl sweep")
    for key in content:
        head = key.split(".")[0]
        if head not in _KEYS:
            if head in checking.SECTIONS:
                raise UserError(f"unknown key '{key}' of a search: did you mean 'set: {{{key}: ...}}'?")
            raise unknown("key of a search", key, _KEYS)
    edited: Nested = {}
    _edit(edited, {}, content)
    return edited


def _written(search: SearchConfig) -> Nested:
    """The content that loads to a search, its domains as they are."""
    fields = {name: getattr(search, name) for name in (*_PLAIN, "name", "preset", "metric")}
    return {**fields, "set": dict(search.set), "search": dict(search.search)}


def _edit(content: Nested, settings: Nested, edits: Mapping[str, Any]) -> None:
    """Change keys of a search; other keys are settings of all trials."""
    for key, value in edits.items():
        head, _, path = key.partition(".")
        if head in ("set", "search"):
            if not path and not isinstance(value, dict | None):
                raise UserError(
                    f"{head} must map dotted keys to values, got {value!r}: see rayfl tune --help"
                )
            entries = {path: value} if path else (value or {})
            content[head] = {**content.get(head, {}), **entries}
        elif head == "metric" and path:
            raise UserError(f"what is '{key}'? Write metric={path}, or metric='{{{path}: max}}'")
        elif key in _KEYS:
            content[key] = value
        else:
            lay(settings, {key: value})


def _build(content: Nested, settings: Nested) -> SearchConfig:
    values = {key: _checked(key, content[key]) for key in _PLAIN if key in content}
    name, preset = _checked("name", content.get("name", "search")), _checked("preset", content.get("preset"))
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"a search's name is letters, digits, '_', '.' and '-', got '{name}': change name")
    search = SearchConfig(
        name=name,
        preset=preset,
        base=nested(preset) if preset is not None else {},
        set=content.get("set", {}),
        search=read_domains(content.get("search", {})),
        overrides=settings,
        **values,
    )
    metric, mode = content.get("metric"), content.get("mode")
    return dataclasses.replace(search, metric=_metrics(search, metric, mode))


def _checked(key: str, value: Any) -> Any:
    """A value of the type that the field has."""
    hint = typing.get_type_hints(SearchConfig, include_extras=True)[key]
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise UserError(f"{key} must be {problem}, got {value!r}: see rayfl tune --help") from None


def _metrics(search: SearchConfig, metric: Any, mode: Any) -> dict[str, Any]:
    """Each metric with its mode; by default the headline on the validation rows."""
    usual = f"global/val_{TASKS[outline(search.configs({})[0].data).task].headline}"
    if metric is None:
        metric = usual
    if isinstance(metric, Mapping):
        if mode is not None:
            raise UserError(f"several metrics have a mode each, got mode={mode} too: leave mode out")
        modes = dict(metric)
    elif isinstance(metric, str):
        if mode is None and not metric.endswith(_LARGE_IS_GOOD):
            raise UserError(
                f"whether '{metric}' should be large or small is open: add mode: max, or mode: min"
            )
        modes = {metric: mode or "max"}
    else:
        raise UserError(f"metric must be a name, or names with max or min, got {metric!r}: e.g. {usual}")
    for name, wanted in modes.items():
        if wanted not in ("max", "min"):
            raise UserError(f"the mode of '{name}' must be max or min, got {wanted!r}: max is the largest")
    return modes


def _check_settings(search: SearchConfig) -> None:
    """Every dotted key must mean something in at least one trial, and be set in one place."""
    if not search.search:
        raise UserError(
            "a search needs values to draw from, e.g. search: {algorithm.lr: {loguniform: [0.001, 1]}}"
        )
    if len(set(search.seeds)) < len(search.seeds):
        raise UserError(f"seeds must differ, got {list(search.seeds)}: leave the second one out")
    layers = [search.base, search.set, search.overrides]
    for layer in (search.set, search.overrides, search.search):
        if "seed" in layer:
            raise UserError("a search has seeds of its own, got 'seed': write seeds: [0, 1]")
    drawn = [{path: value} for path, domain in search.search.items() for value in domain.examples()]
    names = {name for layer in (*layers, *drawn) if (name := method_name(lay({}, layer))) is not None}
    methods = [algorithms.find(name) for name in sorted(names or {"fedavg"})]
    places = [("set", search.set), ("an override", search.overrides)]
    places += [("search", layer) for layer in drawn]
    places += [(f"when of '{path}'", domain.when) for path, domain in search.search.items()]
    for where, layer in places:
        checking.check_keys(lay({}, layer), methods, where)
    for path in search.overrides:
        for searched in search.search:
            if searched == path or searched.startswith(path + ".") or path.startswith(searched + "."):
                raise UserError(
                    f"'{searched}' is searched and can't be set for all trials: use "
                    f"search.{searched}=null to search it no more"
                )


def _try(search: SearchConfig, sample: Sample) -> None:
    try:
        search.configs(sample)
    except UserError as error:
        hint = ""
        for path, value in sample.items():
            if path in str(error) and isinstance(value, float) and "whole number" in str(error):
                hint = f" (randint draws whole numbers, {search.search[path].kind} does not)"
        values = ", ".join(f"{path}={json.dumps(value)}" for path, value in sample.items())
        raise UserError(f"a sample that would fail, {values}: {error}{hint}") from None
