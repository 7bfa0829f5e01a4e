"""From presets, files and ``key=value`` to the config of an experiment.

Precedence: defaults < preset < ``--with`` files < ``key=value``.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rayfl import algorithms, checking, weights
from rayfl.config import ExperimentConfig, flatten
from rayfl.data import knobs as law_knobs
from rayfl.data import load_partition
from rayfl.errors import UserError
from rayfl.loading.layers import Nested, Overrides, Source, dump_yaml, lay, pairs, read_yaml
from rayfl.loading.sources import nested_source
from rayfl.models import ModelConfig

_LOG = logging.getLogger("rayfl.config")


@dataclass
class Layers:
    """What a config is made of, by who said it."""

    base: Nested = field(default_factory=dict)
    """The preset's word: knobs that another method lacks fall away."""
    user: Nested = field(default_factory=dict)
    """The user's word: what can't be followed is refused."""


def load_experiment(
    source: Source | ExperimentConfig, overrides: Overrides = (), with_files: Sequence[str | Path] = ()
) -> ExperimentConfig:
    """A checked config from a preset's name, a YAML file, nested keys or another config.

    Raises UserError, in one line, for whatever can't be meant.
    """
    layers = Layers(base=nested(source))
    for file in with_files:
        lay(layers.user, read_yaml(file))
    for key, value in pairs(overrides):
        lay(layers.user, {key: value})
    return resolve(layers, warn=True)


def dump(config: ExperimentConfig) -> str:
    """YAML that loads back to an equal config."""
    return dump_yaml(config.to_dict())


def resolve(layers: Layers, *, warn: bool) -> ExperimentConfig:
    """Choose the method, drop what it lacks, check the rest."""
    named = [method_name(layer) for layer in (layers.base, layers.user)]
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
    if warn:
        _point_out_inherited(base.get("model"), layers.user.get("model"))
    config = checking.check(lay(base, layers.user), method)
    config = _with_weights_hash(_with_file_hash(config))
    law, asked = config.data.partition, flatten(layers.user)
    if warn and "data.partition.alpha" in asked and "alpha" not in law_knobs(law):
        _LOG.warning(
            "data.partition.alpha has no effect with data.partition.kind=%s: set kind to dirichlet", law.kind
        )
    return config


def _point_out_inherited(before: object, asked: object) -> None:
    """Another backbone keeps what the preset said of its own, and is easily taken for the published one."""
    if not (isinstance(before, dict) and isinstance(asked, dict)):
        return
    if asked.get("name") in (None, before.get("name")):
        return
    kept = [key for key in before if key not in asked]
    if kept:
        named = ", ".join(f"model.{key}={before[key]}" for key in kept)
        plain = " ".join(f"model.{key}={getattr(ModelConfig(), key, None)}" for key in kept)
        _LOG.warning(
            "the preset's %s holds for model.name=%s too; as published it is %s", named, asked["name"], plain
        )


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


def method_name(layer: Nested) -> str | None:
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


def nested(source: Source | ExperimentConfig) -> Nested:
    """The layer that a source stands for, its own preset included."""
    if isinstance(source, ExperimentConfig):
        keys = source.to_dict()
        own = type(source.algorithm)(name=source.algorithm.name)
        # What is a default of this method must not become a choice once another method is put in.
        keys["algorithm"] = {
            key: value
            for key, value in keys["algorithm"].items()
            if key == "name" or getattr(source.algorithm, key) != getattr(own, key)
        }
        return keys
    return nested_source(source)
