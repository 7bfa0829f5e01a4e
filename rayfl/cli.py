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
from rayfl.commands.command import DONE, FAILED, INTERRUPTED, WRONG, say
from rayfl.commands.mistakes import check_words, refusal
from rayfl.errors import RunFailed, UserError
from rayfl.welcome import WELCOME, offer_demo


class _Parser(argparse.ArgumentParser):
    """Reports mistakes like every other part of rayfl: one line, exit 2."""

    def error(self, message: str) -> NoReturn:
        raise refusal(self, message)


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
        except KeyboardInterrupt as interrupt:
            say(f"{' '.join(['interrupted', *map(str, interrupt.args)])}{_how_to_go_on(arguments)}")
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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the arguments of a command ask for; UserError where that is nothing."""
    parser = make_parser()
    args, rest = parser.parse_known_args(arguments)
    check_words(args, rest, re.findall(r"--[\w-]+", parser.format_help() + args.parser.format_help()))
    # argparse takes positional arguments in one piece only; settings may also follow options.
    if rest:
        args.settings += rest
    return args


def _main(arguments: list[str]) -> int:
    if not arguments:
        print(WELCOME)
        return DONE
    if arguments == ["run"]:
        arguments[:] = offer_demo()
        if not arguments:
            return DONE
    if arguments[0] in ("help", "version"):
        arguments = [*arguments[1:], f"--{arguments[0]}"]
    try:
        args = parse(arguments)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    # At the end, so that a file in this folder can't stand in for a module of Python's or of rayfl's.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    command: Callable[[argparse.Namespace], int] = args.command
    return command(args)


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="rayfl",
        description="Federated, split and hierarchical learning experiments, reproducible to the bit.",
        epilog="Start with: rayfl run. Examples: rayfl <command> --help. TAB key: rayfl completion --help.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and leave")
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
    """What continues an interrupted command."""
    again = shlex.join(["rayfl", *(word for word in arguments if word != "--resume")])
    ways = [command.go_on for command in COMMANDS if command.name in arguments[:1] and command.go_on]
    return f": {ways[0].format(again=again)}" if ways else ""


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
