"""The command line: from arguments to an exit code, with one line for every mistake."""

import argparse
import logging
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from rayfl.commands import COMMANDS
from rayfl.commands.command import FAILED, INTERRUPTED, WRONG, say
from rayfl.errors import RunFailed, UserError
from rayfl.suggest import unknown


class _Parser(argparse.ArgumentParser):
    """Reports mistakes like every other part of rayfl: one line, exit 2."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            raise unknown("command or kind", choice[1], re.findall(r"[\w-]+", choice[2]))
        raise UserError(f"{message}: see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with _warnings_on_stderr(), _terminated_like_interrupted():
        try:
            return _main(arguments)
        except UserError as error:
            say(f"error: {_line(error)}")
            return WRONG
        except RunFailed as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            for note in getattr(error, "__notes__", ()):
                print(note, file=sys.stderr)
            say(f"error: {_line(error)}")
            return FAILED
        except KeyboardInterrupt:
            say(f"interrupted{_how_to_go_on(arguments)}")
            return INTERRUPTED
        except BrokenPipeError:
            # The reader of our output left, e.g. head; nothing may be flushed to it at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return FAILED
        except Exception as error:
            traceback.print_exc()
            say(f"error: {type(error).__name__}: {_line(error)}")
            return FAILED


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A batch system's SIGTERM ends a run as cleanly as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _main(arguments: list[str]) -> int:
    parser = _make_parser()
    try:
        args, rest = parser.parse_known_args(arguments)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    # argparse takes positional arguments in one piece only; settings may also follow options.
    stray = [
        text for text in rest if text.startswith("-") or "=" not in text or not hasattr(args, "settings")
    ]
    if stray:
        options = re.findall(r"--[\w-]+", parser.format_help() + args.parser.format_help())
        hint = unknown("option", stray[0], options) if stray[0].startswith("-") else None
        raise UserError(
            str(hint or f"what is '{stray[0]}'? Settings look like key=value: see {args.parser.prog} --help")
        )
    if rest:
        args.settings += rest
    # At the end, so that a file in this folder can't stand in for a module of Python's or of rayfl's.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    command: Callable[[argparse.Namespace], int] = args.command
    return command(args)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rayfl",
        description="Federated, split and hierarchical learning experiments, reproducible to the bit.",
        epilog="Start with: rayfl run splitfed_v1.mnist5k. Examples: rayfl <command> --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(title="commands", dest="name", required=True, metavar="command")

    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=command.main, parser=sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object, last on stdout")
        command.arguments(sub)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from importlib.metadata import version

        print(f"rayfl {version('rayfl')}")
        parser.exit()


def _how_to_go_on(arguments: Sequence[str]) -> str:
    """The command that continues an interrupted one."""
    again = shlex.join(["rayfl", *arguments])
    if "run" in arguments[:1]:
        return f": go on with {again}{'' if '--resume' in arguments else ' --resume'}"
    if "sweep" in arguments[:1]:
        return f": go on with {again} (finished cells are kept)"
    return ""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no further details"


class _ToStderr(logging.Handler):
    """One line per warning, to whatever stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}")


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    handler = _ToStderr(level=logging.WARNING)
    logger = logging.getLogger("rayfl")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
