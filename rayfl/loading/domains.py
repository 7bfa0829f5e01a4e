"""From ``{uniform: [0, 1], when: {...}}`` to the values that a search draws from."""

import graphlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from rayfl.config import flatten
from rayfl.errors import UserError
from rayfl.search.space import Domain
from rayfl.suggest import unknown

_KINDS: tuple[str, ...] = get_args(get_type_hints(Domain)["kind"])
_FORMS = {
    "choice": "a list of values",
    "uniform": "[low, high]",
    "loguniform": "[low, high], both above 0",
    "quniform": "[low, high, step]",
    "randint": "[low, high], whole numbers, both included",
}


def read_domains(content: Mapping[str, Any]) -> dict[str, Domain]:
    """Path -> domain, those first that the conditions of others name. A path that is null is left out."""
    found = {path: _domain(path, value) for path, value in _paths(content, "") if value is not None}
    for path in found:
        for other in found:
            if other.startswith(path + "."):
                raise UserError(f"'{path}' and '{other}' are both searched: one is part of the other")
    return {path: found[path] for path in _in_order(found)}


def _paths(content: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Dotted paths, also where keys are nested."""
    paths: list[tuple[str, Any]] = []
    for key, value in content.items():
        if isinstance(value, Mapping) and not (set(value) & set(_KINDS)) and "when" not in value and value:
            inner = next(iter(value.values()))
            if isinstance(inner, Mapping | Domain):
                paths += _paths(value, f"{prefix}{key}.")
                continue
            raise unknown(f"kind of '{prefix}{key}'", next(iter(value)), _KINDS)
        paths.append((prefix + key, value))
    return paths


def _domain(path: str, content: Any) -> Domain:
    if isinstance(content, Domain):
        return content
    kinds = [key for key in content if key != "when"] if isinstance(content, Mapping) else []
    if len(kinds) != 1:
        raise UserError(
            f"search.{path} must be one of {', '.join(_KINDS)}, got {content!r}: e.g. {{choice: [1, 2]}}"
        )
    kind, when = kinds[0], content.get("when") or {}
    if kind not in _KINDS:
        raise unknown(f"kind of '{path}'", kind, _KINDS)
    if not isinstance(when, Mapping):
        raise UserError(f"when of '{path}' must map other paths to values, got {when!r}: e.g. {{seed: 0}}")
    return _built(path, kind, content[kind], dict(when))


def _built(path: str, kind: Any, given: Any, when: dict[str, Any]) -> Domain:
    wrong = UserError(f"{kind} of '{path}' is {_FORMS[kind]}, got {given!r}: see rayfl tune --help")
    if not isinstance(given, list) or not given:
        raise wrong
    if kind == "choice":
        return Domain(kind=kind, choices=tuple(given), when=when)
    numbers: Sequence[Any] = given
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise wrong
    if len(numbers) != (3 if kind == "quniform" else 2):
        raise wrong
    low, high = numbers[:2]
    step = numbers[2] if kind == "quniform" else None
    if kind == "randint" and not all(isinstance(number, int) for number in numbers):
        raise wrong
    if (
        low >= high
        or (kind == "loguniform" and low <= 0)
        or (step is not None and not 0 < step <= high - low)
    ):
        raise wrong
    return Domain(kind=kind, low=low, high=high, step=step, when=when)


def _in_order(domains: Mapping[str, Domain]) -> list[str]:
    """Paths in the order given, but those that a condition names before the path that has it."""
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for path, domain in domains.items():
        sorter.add(path, *_named(path, domain, domains))
    try:
        ready = list(sorter.static_order())
    except graphlib.CycleError as error:
        raise UserError(
            f"conditions go in a circle, {' -> '.join(error.args[1])}: take a when away"
        ) from None
    return ready


def _named(path: str, domain: Domain, domains: Mapping[str, Domain]) -> list[str]:
    """The searched paths that a condition goes by. It must be able to hold."""
    named = []
    for key, wanted in flatten(dict(domain.when)).items():
        for other, its in domains.items():
            if key != other and not key.startswith(other + "."):
                continue
            named.append(other)
            values = [flatten({other: value}).get(key) for value in its.choices]
            options = wanted if isinstance(wanted, list) else [wanted]
            reachable = values if its.kind == "choice" else [o for o in options if its.contains(o)]
            if not any(option in reachable for option in options):
                raise UserError(
                    f"'{path}' is drawn when {key} is {wanted!r}, which '{other}' never is: correct its when"
                )
    return named
