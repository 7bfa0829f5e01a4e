"""``rayfl cost``: what experiments will cost, before anything is trained."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rayfl import waiting
from rayfl.commands.command import DONE, Command, print_json, say, takes_config
from rayfl.errors import UserError

if TYPE_CHECKING:
    from rayfl.config import ExperimentConfig
    from rayfl.costs.tables import Row


def cost(args: argparse.Namespace) -> int:
    """What experiments will cost."""
    if args.json and args.format:
        raise UserError(f"--json and --format {args.format} can't both be printed: leave out one")
    with waiting.loading():
        from rayfl import costs
        from rayfl.costs import render
        from rayfl.costs.tables import LEFT_OUT, Row, nested

    sources = [args.source, *(word for word in args.settings if "=" not in word)]
    settings = [word for word in args.settings if "=" in word]
    cells = [cell for source in sources for cell in _cells(source, settings, args.with_files)]
    rows: list[Row] = []
    for place, (config, labels) in enumerate(cells, start=1):
        tick = _ticker(f"{config.algorithm.name}, {place} of {len(cells)}")
        rows.append(Row(labels, costs.estimate(config, args.accounting, tick)))
    _same_labels(rows)
    if args.json:
        print_json({"accounting": args.accounting, "experiments": [nested(row) for row in rows]})
        return DONE
    print(render.FORMATS[args.format or "text"](rows))
    for note in dict.fromkeys(note for row in rows for note in row.cost.notes):
        say(f"note: {note}")
    if not args.format or args.format == "text":
        print(f"\n{args.accounting}: {costs.ACCOUNTINGS[args.accounting]}; {LEFT_OUT}")
    return DONE


def _cells(
    source: str, settings: Sequence[str], with_files: Sequence[str]
) -> list[tuple["ExperimentConfig", dict[str, str]]]:
    """The experiments of a preset, a file or a sweep with their labels; of several seeds the first."""
    from rayfl.config import SweepConfig, flatten
    from rayfl.loading.experiments import load_experiment
    from rayfl.loading.layers import read_yaml
    from rayfl.loading.sweeps import load_sweep

    is_sweep = source.endswith((".yaml", ".yml")) and "grid" in read_yaml(source)
    if not is_sweep and not any(setting.startswith("grid.") for setting in settings):
        return [_labelled(load_experiment(source, settings, with_files), ())]
    sweep = load_sweep(source if is_sweep else SweepConfig(name="cost", preset=source), settings, with_files)
    distinct: dict[str, ExperimentConfig] = {}
    for cell in sweep.cells():
        distinct.setdefault(replace(cell, seed=0).cell_hash, cell)
    layers = [{axis: value} for axis, values in sweep.grid.items() for value in values]
    asked = {key for layer in (*layers, *(rule.set for rule in sweep.when)) for key in flatten(layer)}
    return [_labelled(cell, sorted(asked - {"seed"})) for cell in distinct.values()]


def _labelled(config: "ExperimentConfig", asked: Sequence[str]) -> tuple["ExperimentConfig", dict[str, str]]:
    """A config with what names it in a table: method, dataset, model, and what a grid varies."""
    from rayfl.config import flatten

    plain = flatten(config.to_dict())
    named = {"method": "algorithm.name", "data": "data.name", "model": "model.name"}
    labels = {label: str(plain[key]) for label, key in named.items()}
    more = {key: plain[key] for key in asked if key not in named.values() and key in plain}
    return config, {**labels, **{key: str(value) for key, value in more.items()}}


def _same_labels(rows: "Sequence[Row]") -> None:
    """Give all rows the same labels, in place; a method lacks the knobs of another."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    for row in rows:
        labels = {name: row.labels.get(name, "-") for name in names}
        row.labels.clear()
        row.labels.update(labels)


def _ticker(what: str) -> Callable[[int, int], None]:
    """Says now and then how far a long estimate is."""
    last = time.monotonic()

    def tick(done: int, rounds: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5 and done < rounds:
            last = time.monotonic()
            say(f"{what}: round {done}/{rounds}")

    return tick


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl cost`` takes."""
    takes_config(parser, "a preset's name, a YAML file or a sweep file; more may follow")
    parser.add_argument("--format", choices=("text", "csv", "latex"), help="how to print it (default: text)")
    parser.add_argument(
        "--accounting", metavar="NAME", default="counted",
        help="counted (default), or paper_hsfp: as H-SFP's table charges fedavg and hierfl",
    )  # fmt: skip


EXAMPLES = """\
  rayfl cost splitfed_v1.mnist5k
  rayfl cost fedavg.mnist5k splitfed_v1.mnist5k hsfl.mnist5k rounds=200 --format latex
  rayfl cost splitfed_v1.mnist5k grid.algorithm.cut_layer=[conv1,conv2] grid.algorithm.name=[sl,splitfed_v1]
  rayfl cost tune_configs/demo.yaml --format csv
  rayfl cost hierfl.mnist5k --accounting paper_hsfp --json

No data is read and nothing is trained: the method's own rounds run on tensors without content, and the
ledger counts them. Methods whose traffic depends on values are named in a note. Where rounds are alike, a
few of them tell the mean: rounds=10."""

COMMAND = Command(
    name="cost",
    help="Print parameters, FLOPs, activations, bytes and client memory of experiments; train nothing.",
    examples=EXAMPLES,
    arguments=arguments,
    main=cost,
)
