"""What ``rayfl`` and ``rayfl run`` say where nothing more is asked of them."""

import sys

from rayfl.errors import UserError

DEMO = "fedavg.digits"

WELCOME = """\
rayfl runs federated, split and hierarchical learning experiments.

  rayfl run fedavg.digits              a first run, some seconds
  rayfl list presets                   what else can be run
  rayfl show fedavg.digits             everything that can be set
  rayfl sweep tune_configs/demo.yaml   a grid of runs, with its table
  rayfl new-method my_method           a method of your own, with its test
  rayfl --help                         all commands"""

RUN = """\
rayfl run SOURCE [key=value ...] runs one experiment.

SOURCE is a preset, named <method>.<setting> (see rayfl list presets), or a YAML file of your own.
A setting is a dotted path and its value; rayfl show SOURCE lists them all.

  rayfl run fedavg.digits
  rayfl run splitfed_v1.digits rounds=5 data.partition.alpha=0.1
  rayfl run my_experiment.yaml algorithm.lr=0.05 seed=1
"""


def offer_demo() -> list[str]:
    """Explain ``rayfl run`` and, to a person at a terminal, offer a run: the words to go on with, or none.

    Raises UserError where nobody can answer.
    """
    print(RUN, file=sys.stderr, flush=True)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(f"SOURCE is missing: e.g. rayfl run {DEMO}")
    try:
        answer = input("Run a first one now, some seconds? [Y/n] ")
    except (EOFError, KeyboardInterrupt):
        print()
        return []
    return ["run", DEMO] if answer.strip().lower() in ("", "y", "yes") else []
