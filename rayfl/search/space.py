"""The values that a search draws from, path by path."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from rayfl.config import flatten

Sample = dict[str, Any]
"""Dotted path -> value, of the paths whose condition holds."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The values of one path: a list of them, or the numbers between two bounds, both included."""

    kind: Literal["choice", "uniform", "loguniform", "quniform", "randint"]
    choices: tuple[Any, ...] = ()
    """Of kind choice."""
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    """Of kind quniform: values are low, low + step, ..., at most high."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """Other paths and the value, or a list of the values, that each must have for this one to be drawn."""

    @property
    def finite(self) -> bool:
        """Whether its values can be counted."""
        return self.kind not in ("uniform", "loguniform")

    @property
    def numeric(self) -> bool:
        """Whether all its values are numbers."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.examples())

    def values(self) -> list[Any]:
        """All values of a finite domain, ascending or in the order given."""
        if self.kind == "choice":
            return list(self.choices)
        if self.kind == "randint":
            return list(range(int(self.low), int(self.high) + 1))
        assert self.step is not None
        # In decimals, so that 0.1 and its double make 0.3.
        low, high, step = (Decimal(str(number)) for number in (self.low, self.high, self.step))
        return [float(low + at * step) for at in range(int((high - low) // step) + 1)]

    def examples(self) -> list[Any]:
        """Values that show what can come: all choices, or bounds and middle."""
        if self.kind == "choice":
            return list(self.choices)
        return list(dict.fromkeys(map(self.nearest, (self.low, (self.low + self.high) / 2, self.high))))

    def nearest(self, number: float) -> int | float:
        """The value closest to a number."""
        clipped = min(max(number, self.low), self.high)
        if self.kind == "randint":
            return round(clipped)
        if self.kind == "quniform":
            values = self.values()
            return float(values[int(np.argmin(np.abs(np.asarray(values) - clipped)))])
        return float(clipped)

    def contains(self, value: Any) -> bool:
        """Whether the value can come of this domain."""
        if self.kind == "choice":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        return abs(value - self.nearest(value)) <= slack

    def draw(self, rng: np.random.Generator) -> Any:
        """A random value."""
        if self.kind == "loguniform":
            return self.nearest(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        if self.kind == "uniform":
            return self.nearest(rng.uniform(self.low, self.high))
        values = self.values()
        return values[int(rng.integers(len(values)))]


@dataclass(frozen=True)
class Space:
    """All paths of a search."""

    domains: Mapping[str, Domain]
    """A path comes after those that its condition names."""
    fixed: Mapping[str, Any]
    """The flat config without a sample, which conditions may go by too."""

    def active(self, path: str, sample: Mapping[str, Any]) -> bool:
        """Whether a path is drawn, given the values of those before it."""
        return meets({**self.fixed, **flatten(dict(sample))}, self.domains[path].when)

    def contains(self, sample: Mapping[str, Any]) -> bool:
        """Whether the sample has a value of its domain for each path that is drawn, and no other."""
        seen: Sample = {}
        for path, domain in self.domains.items():
            if self.active(path, seen):
                if path not in sample or not domain.contains(sample[path]):
                    return False
                seen[path] = sample[path]
        return len(seen) == len(sample)

    def points(self) -> Iterator[Sample]:
        """Every sample of a finite space, the last path varying fastest."""
        yield from self._points(list(self.domains), {})

    def _points(self, paths: Sequence[str], sample: Sample) -> Iterator[Sample]:
        if not paths:
            yield dict(sample)
            return
        path, *rest = paths
        if not self.active(path, sample):
            yield from self._points(rest, sample)
            return
        for value in self.domains[path].values():
            yield from self._points(rest, {**sample, path: value})

    def examples(self) -> Iterator[Sample]:
        """Samples in which each path has each of its examples once, with its condition met."""
        for path, domain in self.domains.items():
            for value in domain.examples():
                yield self._completed({**self._wanted(path), path: value})

    def _wanted(self, path: str) -> Sample:
        """Values that meet the condition of a path, and the conditions of those."""
        wanted: Sample = {}
        for other, value in self.domains[path].when.items():
            if other in self.domains:
                wanted |= {**self._wanted(other), other: value[0] if isinstance(value, list) else value}
        return wanted

    def _completed(self, given: Sample) -> Sample:
        sample: Sample = {}
        for path, domain in self.domains.items():
            if path in given or self.active(path, sample):
                sample[path] = given.get(path, domain.examples()[0])
        return sample


def meets(flat: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Whether a flat config has the value, or one of the values, at each path of a condition."""
    for path, wanted in flatten(dict(condition)).items():
        actual = flat.get(path)
        if path not in flat or not (actual == wanted or (isinstance(wanted, list) and actual in wanted)):
            return False
    return True


def key_of(sample: Mapping[str, Any]) -> str:
    """A sample as text, equal for equal samples."""
    return json.dumps(sample, sort_keys=True)
