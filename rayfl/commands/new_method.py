"""``rayfl new-method``: the files of a method of one's own."""

import argparse
import os
import shlex
from pathlib import Path

from rayfl.commands.command import DONE, Command, print_json
from rayfl.scaffold import PARENTS


def new_method(args: argparse.Namespace) -> int:
    """A method file, a preset and a test, which work as they are."""
    from rayfl.scaffold.write import write

    paths = write(args.method, args.like, Path(args.dir))
    if args.json:
        print_json({"files": [str(path) for path in paths]})
        return DONE
    method, preset, test = (path.name for path in paths)
    print(f"written: {', '.join(map(str, paths))}\n\nnext:")
    if Path(args.dir).resolve() != Path.cwd():
        print(f"  cd {shlex.quote(os.path.normpath(args.dir))}")
    print(f"  rayfl run {preset}\n  pytest {test}\nthen fill in {method} from the top, and run both again")
    return DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl new-method`` takes."""
    parser.add_argument("method", metavar="NAME", help="the method's name, e.g. my_method")
    parser.add_argument(
        "--like",
        choices=PARENTS,
        default=PARENTS[0],
        metavar="METHOD",
        help=f"what to start from: {', '.join(PARENTS)} (default: {PARENTS[0]})",
    )
    parser.add_argument("--dir", metavar="DIR", default=".", help="folder to write to (default: this one)")


EXAMPLES = """\
  rayfl new-method my_method
  rayfl new-method my_split_method --like splitfed_v1 --dir methods"""

COMMAND = Command(
    name="new-method",
    help="Write a method of your own to start from, with a preset and a test.",
    examples=EXAMPLES,
    arguments=arguments,
    main=new_method,
)
