"""``rayfl sweep``: a grid of experiments."""

import argparse
import sys

from rayfl import waiting
from rayfl.commands.command import DONE, FAILED, Command, print_json, say, takes_config, takes_out, takes_pace


def sweep(args: argparse.Namespace) -> int:
    """A grid of experiments."""
    with waiting.loading():
        from rayfl import sweeps
        from rayfl.loading.sweeps import load_sweep
        from rayfl.progress import Silent, SweepProgress

        plan = load_sweep(args.source, args.settings, args.with_files)
        progress = Silent() if args.quiet else SweepProgress()
        frame = sweeps.run_sweep(plan, args.out, args.retry_failed, args.max_concurrent, progress)
    from rayfl.report.table import grid_table
    from rayfl.text import counted

    table = grid_table(frame)
    cells = frame.to_dict(orient="records")
    failed = [cell for cell in cells if cell["status"] == "FAILED"]
    left = [cell for cell in cells if cell["status"] not in ("FINISHED", "DIVERGED", "FAILED")]
    if args.json:
        status = "FAILED" if failed or left else "FINISHED"
        print_json({"status": status, "cells": cells, "table": table.markdown()})
    else:
        print(table.plain(colour=sys.stdout.isatty()))
        print(f"results in {args.out}\nbrowse them with: rayfl ui --out {args.out}")
    if failed:
        say(f"error: {len(failed)} of {counted(len(cells), 'cell')} failed: run it again with --retry-failed")
    if left:
        say(f"error: {len(left)} of {counted(len(cells), 'cell')} did not end: run the same sweep again")
    return FAILED if failed or left else DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl sweep`` takes."""
    takes_config(parser, "a YAML file with a grid", presets=False)
    takes_out(parser, "folder of all results")
    takes_pace(parser, "cells")


EXAMPLES = """\
  rayfl sweep tune_configs/demo.yaml
  rayfl sweep tune_configs/dirichlet_grid.yaml grid.seed=[0,1] rounds=5
  rayfl sweep tune_configs/demo.yaml --retry-failed --max-concurrent 2

a sweep file:
  name: my_grid
  preset: splitfed_v1.mnist5k
  grid:
    algorithm.name: [fedavg, splitfed_v1]
    seed: [0, 1, 2]
  when:
    - {if: {algorithm.name: fedavg}, set: {algorithm.lr: 0.1}}"""

COMMAND = Command(
    name="sweep",
    help="Run a grid of experiments; finished cells are not run again.",
    examples=EXAMPLES,
    arguments=arguments,
    main=sweep,
    go_on="go on with {again} (finished cells are kept)",
)
