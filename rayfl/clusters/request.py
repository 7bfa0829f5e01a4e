"""A command for the cluster: what it says, whether it can be meant, and which files it names."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.loading.layers import read_yaml
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
        waiting = [file for file in (self.asked.source, *self.asked.with_files) if _is_file(file)]
        for file in waiting:
            place = below_here(file)
            if place not in found:
                found.append(place)
                preset = read_yaml(file).get("preset")
                if isinstance(preset, str) and _is_file(preset):
                    waiting.append(preset)
        return found

    def check(self) -> list[ExperimentConfig]:
        """The experiments that it stands for, none for a search, which chooses them as it goes.

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

        load_search(*asked)
        return []


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


def check_sent(configs: Sequence[ExperimentConfig], sent: Sequence[str]) -> None:
    """Refuse experiments that read files of this folder which stay behind."""
    here = Path.cwd()
    for config in configs:
        read = {"data.partition.path": config.data.partition.path, "model.weights": config.model.weights}
        for key, path in read.items():
            if path is None or not Path(path).is_relative_to(here):
                continue
            place = Path(path).relative_to(here).as_posix()
            if place not in sent:
                raise UserError(
                    f"{key}={place} stays behind: send it by --with-file {place}, or name where it is on "
                    f"the cluster"
                )


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
