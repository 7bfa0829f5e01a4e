"""``rayfl run``: one experiment."""

import argparse
from typing import TYPE_CHECKING

from rayfl import waiting
from rayfl.commands.command import DONE, FAILED, Command, print_json, takes_config, takes_out

if TYPE_CHECKING:
    from rayfl.experiment import Result


def run(args: argparse.Namespace) -> int:
    """One experiment."""
    with waiting.loading():
        result, ended_before = _run(args)
    if args.json:
        print_json(
            {
                "status": result.status,
                "rounds": result.rounds,
                "metrics": result.metrics,
                "run_id": result.run_id,
                "weights_sha256": result.weights_sha256,
                "cell_hash": result.cell_hash,
                "partition_hash": result.partition_hash,
            }
        )
    else:
        from rayfl import console

        print(console.summary(result, args.out, ended_before))
    return DONE if result.status == "FINISHED" else FAILED


def _run(args: argparse.Namespace) -> "tuple[Result, bool]":
    """The result, and whether an earlier command had come to it."""
    from rayfl.early import refuse_early

    refuse_early(args.source, args.settings, args.with_files)
    import rayfl
    from rayfl import console
    from rayfl.interrupt import StopInOrder

    progress, stop = console.RunProgress(), StopInOrder()
    try:
        result = rayfl.run(
            args.source,
            overrides=args.settings,
            with_files=args.with_files,
            out=args.out,
            resume=args.resume,
            observers=(stop,) if args.quiet else (stop, progress),
        )
    finally:
        stop.close()
        progress.close()
    return result, stop.experiment is None


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl run`` takes."""
    takes_config(parser, "a preset's name or a YAML file")
    takes_out(parser, "folder of all results")
    parser.add_argument("--resume", action="store_true", help="go on from this experiment's last checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


EXAMPLES = """\
  rayfl run splitfed_v1.mnist5k
  rayfl run fedavg.mnist5k algorithm.lr=0.05 data.partition='{kind: dirichlet, alpha: 0.1}'
  rayfl run hsfl.mnist5k rounds=50 --resume --out results
  rayfl run fedavg.digits algorithm.name=my_module:MyMethod --with my_gpu.yaml --json"""

COMMAND = Command(
    name="run",
    help="Run one experiment.",
    examples=EXAMPLES,
    arguments=arguments,
    main=run,
    go_on="go on with {again} --resume",
)
