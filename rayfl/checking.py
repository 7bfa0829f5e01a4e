"""Whether nested keys make a config: unknown keys, types and bounds, settings that exclude each other.

Types and bounds are pydantic's work, done here and not when a config is built in Python.
"""

import dataclasses
import difflib
import functools
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import TypeAdapter, ValidationError

from rayfl import algorithms, data, models
from rayfl.algorithms import ALGORITHMS, Algorithm
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.suggest import unknown

SECTIONS = tuple(field.name for field in dataclasses.fields(ExperimentConfig))
"""The keys of an experiment's first level."""


_ALSO_CALLED = {
    "learning_rate": "lr",
    "eta": "lr",
    "epochs": "local_epochs",
    "clients": "num_clients",
    "n_clients": "num_clients",
    "edges": "num_edges",
    "fraction": "participation",
    "frac": "participation",
    "dataset": "data.name",
    "method": "algorithm.name",
    "gpus": "gpus_per_actor",
    "num_gpus": "gpus_per_actor",
    "workers": "client_actors",
    "cut": "cut_layer",
    "bs": "batch_size",
    "wd": "weight_decay",
    "num_rounds": "rounds",
}
"""What other tools call some keys."""


def knobs(method: type[Algorithm]) -> tuple[str, ...]:
    """The keys of ``algorithm`` under a method."""
    return tuple(field.name for field in dataclasses.fields(method.Config))


def check(nested: Mapping[str, Any], method: type[Algorithm]) -> ExperimentConfig:
    """The config that nested keys stand for; UserError, in one line, where they stand for none."""
    check_keys(nested, [method])
    hints = _hints(ExperimentConfig, method)
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for section, hint in hints.items():
        if section not in nested or (nested[section] is None and dataclasses.is_dataclass(hint)):
            continue
        try:
            # JSON, because strict JSON takes lists for tuples and keys for dataclasses, but no 3.0 for 3.
            text = json.dumps(_as_meant(nested[section], hint))
            values[section] = _adapter(hint).validate_json(text, strict=True)
        except ValidationError as error:
            for detail in error.errors():
                key, message = _explain((section, *detail["loc"]), detail, nested, method)
                errors.setdefault(key, message)
    if errors:
        first, *others = errors
        more = f" (and {len(others)} more: {', '.join(others)})" if others else ""
        raise UserError(errors[first] + more)
    values.setdefault("algorithm", method.Config(name="fedavg"))
    config = ExperimentConfig(**values)
    _check_names(config)
    _check_together(config)
    return config


def check_keys(nested: Mapping[str, Any], methods: Sequence[type[Algorithm]], where: str = "") -> None:
    """Refuse keys that none of these methods knows, naming the nearest right one."""
    known: dict[str, Any] = {}
    for method in methods:
        known.update(_keys(ExperimentConfig, method))
    wrong = list(_wrong(nested, known, ""))
    if wrong:
        more = f" (and {len(wrong) - 1} more: {', '.join(wrong[1:])})" if wrong[1:] else ""
        place = f" in {where}" if where else ""
        raise UserError(f"unknown key '{wrong[0]}'{place}: {_nearest(wrong[0], known, methods)}{more}")


def _wrong(nested: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> Iterable[str]:
    for key, value in nested.items():
        path = prefix + key
        if path not in known:
            yield path
        elif dataclasses.is_dataclass(known[path]):
            if isinstance(value, Mapping):
                yield from _wrong(value, known, path + ".")
            elif value is not None:
                raise UserError(
                    f"{path} must hold keys of its own, got {_show(value)}: {_section_hint(path, value)}"
                )


def _section_hint(path: str, value: Any) -> str:
    main = {"data.partition": "kind", "fleet": "kind", "train": "device", "tracking": "uri"}.get(path, "name")
    return f"did you mean {path}.{main}={value}?" if isinstance(value, str) else f"set e.g. {path}.{main}"


def _nearest(path: str, known: Mapping[str, Any], methods: Sequence[type[Algorithm]]) -> str:
    leaves = [key for key, hint in known.items() if not dataclasses.is_dataclass(hint)]
    name = path.rpartition(".")[2]
    head, _, rest = path.partition(".")
    alias = difflib.get_close_matches(name, _ALSO_CALLED, n=1, cutoff=0.85)
    called = _ALSO_CALLED[alias[0]] if alias else None
    meant = [key for key in leaves if called in (key, key.rpartition(".")[2])]
    if meant:
        return f"did you mean '{meant[0]}'?"
    if head == "algorithm" and rest:
        near = difflib.get_close_matches(path, leaves, n=1, cutoff=0.9)
        if near:
            return f"did you mean '{near[0]}'?"
        owners = [other for other, method in ALGORITHMS.items() if rest in knobs(method)]
        if owners:
            mine = " and ".join(method.__name__ for method in methods)
            return f"{mine} has no such knob ({', '.join(owners)} would)"
    same = [key for key in leaves if key.rpartition(".")[2] == name]
    if not same:
        names = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in leaves}, n=1, cutoff=0.6)
        same = [key for key in leaves if key.rpartition(".")[2] in names]
    if not same:
        same = difflib.get_close_matches(path, leaves, n=1, cutoff=0.6)
    if same:
        same.sort(key=lambda key: -difflib.SequenceMatcher(None, key, path).ratio())
        return f"did you mean {' or '.join(repr(key) for key in same[:3])}?"
    parent = path.rpartition(".")[0]
    siblings = [key for key in known if key.rpartition(".")[0] == parent]
    return f"known here: {', '.join(siblings or SECTIONS)}"


def _hints(config: type, method: type[Algorithm] | None = None) -> dict[str, Any]:
    hints = typing.get_type_hints(config, include_extras=True)
    named = {field.name: hints[field.name] for field in dataclasses.fields(config)}
    return named if method is None else {**named, "algorithm": method.Config}


def _keys(config: type, method: type[Algorithm] | None = None, prefix: str = "") -> dict[str, Any]:
    """Every dotted key with its type, sections included."""
    found: dict[str, Any] = {}
    for name, hint in _hints(config, method).items():
        found[prefix + name] = hint
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            found.update(_keys(hint, prefix=f"{prefix}{name}."))
    return found


@functools.lru_cache(maxsize=256)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _as_meant(value: Any, hint: Any) -> Any:
    """A section without entries, which YAML reads as null, is a section of defaults; the word off, which it
    reads as false, is that word where it is one of several."""
    if value is False and get_origin(hint) is Literal and "off" in get_args(hint):
        return "off"
    if not (dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping)):
        return value
    inner = _hints(hint)
    return {
        key: _as_meant(item, inner[key])
        for key, item in value.items()
        if not (item is None and dataclasses.is_dataclass(inner[key]))
    }


def _explain(
    place: tuple[str | int, ...], detail: Any, nested: Mapping[str, Any], method: type[Algorithm]
) -> tuple[str, str]:
    """The dotted key of one of pydantic's complaints, and the complaint in our words."""
    known = _keys(ExperimentConfig, method)
    key, value = str(place[0]), nested[str(place[0])]
    for step in place[1:]:
        if f"{key}.{step}" not in known:
            break
        key = f"{key}.{step}"
        value = value.get(step) if isinstance(value, Mapping) else value
    if detail["type"] == "value_error":
        return key, str(detail["ctx"]["error"])
    if detail["type"].startswith("missing") and key == ".".join(map(str, place)):
        return key, f"{key} has no default and must be set: add {key}=..."
    hint = known[key]
    if dataclasses.is_dataclass(hint):
        return key, f"{key} must hold keys of its own, got {_show(value)}: {_section_hint(key, value)}"
    return key, f"{key} must be {_wanted(hint)}, got {_show(value)}: {_advice(key, hint, value, method)}"


def _advice(key: str, hint: Any, value: Any, method: type[Algorithm]) -> str:
    near = difflib.get_close_matches(str(value), [str(option) for option in _options(hint)], n=1)
    if near:
        return f"did you mean {near[0]}?"
    if isinstance(value, list) and get_origin(hint) is not tuple:
        return "several values make the grid of a sweep"
    default: Any = ExperimentConfig(algorithm=method.Config(name="fedavg"))
    for step in key.split("."):
        default = getattr(default, step)
    if isinstance(default, str) and not isinstance(value, str) and not _options(hint):
        return "put it in quotes"
    return f"the default is {_show(default)}"


def _options(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(option for part in get_args(hint) for option in _options(part))


def _wanted(hint: Any) -> str:
    """A type in words."""
    plain = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        types.NoneType: "null",
    }
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = " and ".join(filter(None, map(_bound, parts[1:])))
        return _wanted(parts[0]) + (f" {bounds}" if bounds else "")
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_wanted, parts))
    if origin is tuple and parts[-1:] == (Ellipsis,):
        return f"a list with each entry {_wanted(parts[0])}"
    if origin is tuple:
        return f"a list of {len(parts)} ({'; '.join(map(_wanted, parts))})"
    if origin is Mapping:
        return f"names, each with {_wanted(parts[1])}"
    return plain.get(hint, str(hint))


def _bound(bound: Any) -> str:
    words = {
        annotated_types.Ge: ("ge", "of at least"),
        annotated_types.Gt: ("gt", "above"),
        annotated_types.Le: ("le", "of at most"),
        annotated_types.Lt: ("lt", "below"),
    }
    if type(bound) not in words:
        return ""
    attribute, text = words[type(bound)]
    return f"{text} {getattr(bound, attribute)}"


def _show(value: Any) -> str:
    """A value as a config file would have it, cut short."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_names(config: ExperimentConfig) -> None:
    algorithms.find(config.algorithm.name)
    data.check_name(config.data)
    if config.model.name not in models.MODELS:
        raise unknown("model", config.model.name, models.MODELS)


def _check_together(config: ExperimentConfig) -> None:
    """Settings that are fine alone and senseless together."""
    fleet, algorithm, device = config.fleet, config.algorithm, config.train.device
    if fleet.client_actors is not None and fleet.clients_per_actor is not None:
        raise UserError(
            f"fleet.client_actors={fleet.client_actors} and "
            f"fleet.clients_per_actor={fleet.clients_per_actor} exclude each other: set one of them to null"
        )
    for key in ("gpus_per_actor", "gpus_per_server"):
        gpus = getattr(fleet, key)
        if gpus > 1 and gpus != int(gpus):
            raise UserError(
                f"fleet.{key}={gpus} can't be granted, above 1 GPUs come whole: "
                f"use {math.floor(gpus)} or {math.ceil(gpus)}"
            )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError(f"train.device must be cpu, cuda or cuda:<n>, got '{device}': the default is cpu")
    if device != "cpu" and fleet.kind == "ray" and fleet.gpus_per_actor == 0:
        raise UserError(
            f"train.device={device} needs a share of a GPU per client actor, got fleet.gpus_per_actor=0: "
            f"set e.g. fleet.gpus_per_actor=0.5 (two actors on a GPU)"
        )
    if algorithm.nesterov and algorithm.optimizer == "sgd" and algorithm.momentum == 0:
        raise UserError("algorithm.nesterov needs momentum, got algorithm.momentum=0: set it to e.g. 0.9")
