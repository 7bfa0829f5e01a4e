"""``rayfl show``: the resolved config, and what the settings changed."""

import argparse
import json

from rayfl import waiting
from rayfl.commands.command import DONE, Command, print_json, takes_config


def show(args: argparse.Namespace) -> int:
    """The resolved config, and what the settings changed."""
    with waiting.loading():
        from rayfl.config import flatten
        from rayfl.loading.experiments import dump, load_experiment
        from rayfl.loading.layers import read_yaml

    if args.source.endswith((".yaml", ".yml")) and "grid" in read_yaml(args.source):
        return _show_sweep(args)
    config = load_experiment(args.source, args.settings, args.with_files)
    before = flatten(load_experiment(args.source).to_dict())
    after = flatten(config.to_dict())
    changed = {
        key: [before.get(key), after.get(key)]
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key) != after.get(key)
    }
    if args.json:
        print_json({"config": config.to_dict(), "cell_hash": config.cell_hash, "changed": changed})
        return DONE
    print(dump(config), end="")
    print(f"# cell {config.cell_hash}")
    for key, (old, new) in changed.items():
        texts = [json.dumps(value) if key in flat else "-" for value, flat in ((new, after), (old, before))]
        print(f"# {key}: {texts[0]}, in {args.source}: {texts[1]}")
    if not changed:
        print(f"# nothing differs from {args.source}")
    return DONE


def _show_sweep(args: argparse.Namespace) -> int:
    from rayfl import text
    from rayfl.config import flatten
    from rayfl.loading.sweeps import load_sweep

    sweep = load_sweep(args.source, args.settings, args.with_files)
    cells = sweep.cells()
    flat = [flatten(cell.to_dict()) for cell in cells]
    layers = [{axis: value} for axis, values in sweep.grid.items() for value in values]
    asked = {key for layer in (*layers, *(rule.set for rule in sweep.when)) for key in flatten(layer)}
    varying = list(dict.fromkeys(key for cell in flat for key in cell if key in asked))
    rows = [{key: cell[key] for key in varying if key in cell} for cell in flat]
    if args.json:
        hashed = [{"cell_hash": cell.cell_hash, **row} for cell, row in zip(cells, rows, strict=True)]
        print_json({"name": sweep.name, "cells": hashed})
        return DONE
    print(f"{sweep.name}: {text.counted(len(cells), 'cell')}; what the grid sets:")
    body = [
        [cell.cell_hash, *(_shown(row[key]) if key in row else "-" for key in varying)]
        for cell, row in zip(cells, rows, strict=True)
    ]
    print(text.columns([["cell", *varying], *body]))
    return DONE


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl show`` takes."""
    takes_config(parser, "a preset's name or a YAML file; of a sweep, its cells are shown")


EXAMPLES = "  rayfl show splitfed_v1.mnist5k algorithm.lr=0.05\n  rayfl show tune_configs/demo.yaml"

COMMAND = Command(
    name="show",
    help="Print the resolved config and what differs from SOURCE; run nothing.",
    examples=EXAMPLES,
    arguments=arguments,
    main=show,
)
