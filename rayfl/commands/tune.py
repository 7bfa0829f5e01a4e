"""``rayfl tune``: a search over hyper-parameters."""

import argparse

from rayfl import waiting
from rayfl.commands.command import DONE, FAILED, Command, print_json, say, takes_config, takes_out, takes_pace


def tune(args: argparse.Namespace) -> int:
    """A search over hyper-parameters."""
    with waiting.loading():
        from rayfl.loading.searches import load_search
        from rayfl.progress import Silent, SweepProgress
        from rayfl.search.run import run_search

        search = load_search(args.source, args.settings, args.with_files)
        progress = Silent() if args.quiet else SweepProgress()
        found = run_search(search, args.out, args.retry_failed, args.max_concurrent, progress)
    from rayfl.report.search import table

    trials = found.trials.to_dict(orient="records")
    failed = sum(trial["status"] == "FAILED" for trial in trials)
    if args.json:
        print_json(
            {
                "status": "FAILED" if failed or not found.best else "FINISHED",
                "name": search.name,
                "metric": dict(search.metric),
                "trials": trials,
                "best": found.best,
                "table": table(found.trials, markdown=True),
            }
        )
    else:
        print(table(found.trials))
        for best in found.best:
            tests = {key: value for key, value in best["metrics"].items() if key.startswith("global/test_")}
            named = [f"{k.removeprefix('global/')} {tests[k]:.4f}" for k in sorted(tests) if k in _SHOWN]
            print(f"trial {best['trial']}: {', '.join(named)}; rayfl run {best['preset']}")
    if failed:
        say(f"error: {failed} of {len(trials)} trials failed: run it again with --retry-failed")
    if not found.best:
        say("error: no trial ran to its end, so there is no best: run the same search again")
    return FAILED if failed or not found.best else DONE


_SHOWN = ("global/test_accuracy", "global/test_dice")
"""Of the test rows, and only for the chosen: the headline."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl tune`` takes."""
    takes_config(parser, "a YAML file with a search", presets=False)
    takes_out(parser, "folder of all results")
    takes_pace(parser, "trials")


EXAMPLES = """\
  rayfl tune tune_configs/search_lr.yaml
  rayfl tune tune_configs/search_lr.yaml trials=30 scheduler=none rounds=20
  rayfl tune tune_configs/search_lr.yaml search.algorithm.lr='{uniform: [0.01, 0.1]}' name=narrow

a search file:
  name: my_search
  preset: fedavg.digits
  search:
    algorithm.lr: {loguniform: [0.001, 0.5]}     # also: uniform, quniform: [low, high, step]
    algorithm.batch_size: {choice: [10, 20]}
    algorithm.local_epochs: {randint: [1, 5]}    # 5 included
    algorithm.optimizer: {choice: [sgd, adam]}
    algorithm.momentum: {uniform: [0, 0.95], when: {algorithm.optimizer: sgd}}
  seeds: [0, 1]
  trials: 20             # or hours: 0.5, or both
  sampler: tpe           # cmaes, random, grid
  scheduler: asha        # none, hyperband, median, pbt"""

COMMAND = Command(
    name="tune",
    help="Search hyper-parameters; finished trials are not run again.",
    examples=EXAMPLES,
    arguments=arguments,
    main=tune,
    go_on="go on with {again} (finished trials are kept)",
)
