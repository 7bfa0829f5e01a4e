"""A command for the cluster: what it says, whether it can be meant, and which files it names."""

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.loading.layers import pairs, read_yaml
from rayfl.suggest import unknown

SUBMITTED = ("run", "sweep", "tune")
DEFAULT_OUT = "~/rayfl-results"
"""Of the user whom Ray runs as on the cluster."""


@dataclass(frozen=True)
class Request:
    """A ``rayfl run``, ``sweep`` or ``tune`` that is to run elsewhere."""

    arguments: tuple[str, ...]
    """Complete: with the output folder on the cluster."""
    out: str
    asked: argparse.Namespace

    @property
    def command(self) -> str:
        """As one would type it."""
        return shlex.join(["rayfl", *self.arguments])

    def files(self) -> list[str]:
        """The YAML files that it names, and those that these start from, by their place in this folder."""
        found: list[str] = []
        started_from = dict(pairs(self.asked.settings)).get("preset")
        waiting = [self.asked.source, *self.asked.with_files, started_from]
        for file in waiting:
            if isinstance(file, str) and _is_file(file) and below_here(file) not in found:
                found.append(below_here(file))
                waiting.append(read_yaml(file).get("preset"))
        return found

    def words(self) -> Iterator[str]:
        """Every text that is a value in its files and settings."""
        yield from _texts([*map(read_yaml, self.files()), dict(pairs(self.asked.settings))])

    def check(self) -> list[ExperimentConfig]:
        """The experiments that it stands for; of a search, some that show all choices that it draws from.

        Raises UserError, in one line, for whatever can't be meant.
        """
        asked = (self.asked.source, self.asked.settings, self.asked.with_files)
        if self.asked.name == "run":
            from rayfl.loading.experiments import load_experiment

            return [load_experiment(*asked)]
        if self.asked.name == "sweep":
            from rayfl.loading.sweeps import load_sweep

            return load_sweep(*asked).cells()
        from rayfl.loading.searches import load_search

        search = load_search(*asked)
        return [config for sample in search.space().examples() for config in search.configs(sample)]


def read_request(arguments: Sequence[str]) -> Request:
    """What stands after ``rayfl submit``."""
    from rayfl import cli

    given = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not given:
        raise UserError("nothing to submit: write e.g. rayfl submit -- sweep tune_configs/demo.yaml")
    if given[0] not in SUBMITTED:
        raise unknown("command to submit", given[0], SUBMITTED, "options of submit stand before --")
    asked = cli.parse(given)
    out: str = asked.out
    if out == "rayfl-results":
        return Request((*given, "--out", DEFAULT_OUT), DEFAULT_OUT, asked)
    if not out.startswith(("/", "~")):
        raise UserError(
            f"--out must be a whole path on the cluster's shared storage, got '{out}': a job's own folder "
            f"goes when it ends; write e.g. --out /shared/{PurePosixPath(out).name}"
        )
    return Request(given, out, asked)


def check_sent(asked: Request, configs: Sequence[ExperimentConfig], sent: Sequence[str]) -> list[str]:
    """Refuse experiments that read files of this machine which stay behind.

    What comes back are the files that were named by a whole path, which is theirs on the cluster.
    """
    words = set(map(os.path.normpath, asked.words()))
    there = []
    for config in configs:
        for key, path in _read_by(config):
            place = os.path.relpath(path)
            if os.path.isabs(path) and path in words:
                there.append(f"{key}={path}")
            elif os.pardir in Path(place).parts:
                raise UserError(
                    f"{key}={place} stays behind, since it is not in this folder: copy it here and send it "
                    f"by --with-file, or name where it is on the cluster by a whole path"
                )
            elif place not in sent:
                raise UserError(
                    f"{key}={place} stays behind: send it by --with-file {place}, or name where it is on "
                    f"the cluster by a whole path"
                )
    return list(dict.fromkeys(there))


def _read_by(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """The files that an experiment reads besides its dataset, by their setting."""
    law = config.data.partition
    if law.kind == "file" and law.path is not None:
        yield "data.partition.path", law.path
    if config.model.weights is not None:
        yield "model.weights", config.model.weights


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def below_here(file: str | Path) -> str:
    """A file's place in this folder, which it has on the cluster too."""
    path = Path(file)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"'{file}' can't be sent: files keep their place in this folder, so name it from here, "
            f"e.g. configs/{path.name}"
        )
    if not path.is_file():
        raise UserError(f"can't send '{file}': there is no such file in {Path.cwd()}")
    return path.as_posix()


def _is_file(source: str) -> bool:
    return source.endswith((".yaml", ".yml")) or "/" in source
