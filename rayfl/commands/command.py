"""What a command is, and what several of them share."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayfl import text

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all went well, a run failed, the request can't be met, Ctrl-C."""

_PRESETS = "SOURCE is the name of a preset (rayfl list presets) or a YAML file"
_FILES = "SOURCE is a YAML file; its `preset` is the name of a preset (rayfl list presets) or another file"
_SETTINGS = """\
Settings are dotted paths with YAML values:
algorithm.lr=0.05, data.partition.alpha=0.1, data.partition='{kind: dirichlet, alpha: 0.1}'.
Precedence: defaults < preset < --with files < key=value."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One word after ``rayfl``."""

    name: str
    help: str
    """One sentence."""
    examples: str
    """Shown under --help."""
    arguments: Callable[[argparse.ArgumentParser], None]
    """Adds the command's own arguments; ``--json`` is there already."""
    main: Callable[[argparse.Namespace], int]
    """Does it and returns the exit code."""
    go_on: str = ""
    """Said after Ctrl-C, with the command line in the place of ``{again}``."""


def takes_config(parser: argparse.ArgumentParser, what: str, *, presets: bool = True) -> None:
    """SOURCE, ``--with FILE`` and ``key=value``; without ``presets``, SOURCE can't be one."""
    source = parser.add_argument("source", metavar="SOURCE", help=what)
    _complete(source, "_rayfl_source_files" if presets else "_rayfl_yaml_files")
    settings = parser.add_argument(
        "settings", metavar="key=value", nargs="*", default=[], help="settings, e.g. rounds=5"
    )
    _complete(settings, "_rayfl_settings")
    files = parser.add_argument("--with", dest="with_files", metavar="FILE", action="append", default=[],
                                help="lay a YAML file over SOURCE; may be repeated")  # fmt: skip
    _complete(files, "_rayfl_yaml_files")
    parser.epilog = f"{_PRESETS if presets else _FILES}.\n{_SETTINGS}\n\n{parser.epilog}"


def _complete(action: argparse.Action, function: str) -> None:
    """How the TAB key finishes an argument: a function of the completion script."""
    action.complete = {"bash": function, "zsh": function}  # type: ignore[attr-defined]


def takes_out(parser: argparse.ArgumentParser, what: str) -> None:
    """``--out DIR``."""
    parser.add_argument(
        "--out", metavar="DIR", default="rayfl-results", help=f"{what} (default: rayfl-results)"
    )


def takes_pace(parser: argparse.ArgumentParser, what: str) -> None:
    """How many of something to run: ``--retry-failed``, ``--max-concurrent N``, ``--quiet``."""
    parser.add_argument("--retry-failed", action="store_true", help=f"run {what} again that failed")
    parser.add_argument(
        "--max-concurrent", metavar="N", type=count, help=f"most {what} at once (default: as fit)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


Action = tuple[Callable[[argparse.Namespace], int], str, str]
"""What a second word does, its help in one sentence, and its examples."""


def takes_actions(
    parser: argparse.ArgumentParser,
    actions: Mapping[str, Action],
    options: Callable[[argparse.ArgumentParser, str], None],
) -> None:
    """A second word, each with options of its own; ``--json`` may stand before or after it."""
    words = parser.add_subparsers(title="actions", dest="action", required=True, metavar="action")
    for name, (main, help_text, examples) in actions.items():
        sub = words.add_parser(
            name,
            help=help_text,
            description=help_text,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=main, parser=sub)
        json_help = "print one JSON object"
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=json_help)
        options(sub, name)


def count(given: str) -> int:
    """An argument that must be a whole number of at least 1."""
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 was wanted, got '{given}'")
    return int(given)


def print_json(content: dict[str, Any]) -> None:
    """One object, last on stdout."""
    sys.stderr.flush()
    print(json.dumps(text.finite(content)), flush=True)


def say(line: str) -> None:
    """One line on stderr."""
    print(f"rayfl: {line}", file=sys.stderr, flush=True)
