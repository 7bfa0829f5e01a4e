"""The commands. Heavy modules are imported by the command that needs them, so that --help is quick."""

import argparse
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rayfl.errors import RunFailed, UserError
from rayfl.suggest import unknown

if TYPE_CHECKING:
    pass

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all went well, a run failed, the request can't be met, Ctrl-C."""

_SETTINGS = """\
SOURCE is a preset (rayfl list presets) or a YAML file. Settings are dotted paths with YAML values:
algorithm.lr=0.05, data.partition.alpha=0.1, data.partition='{kind: dirichlet, alpha: 0.1}'.
Precedence: defaults < preset < --with files < key=value."""


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
            _say(f"error: {_line(error)}")
            return WRONG
        except RunFailed as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            for note in getattr(error, "__notes__", ()):
                print(note, file=sys.stderr)
            _say(f"error: {_line(error)}")
            return FAILED
        except KeyboardInterrupt:
            _say(f"interrupted{_how_to_go_on(arguments)}")
            return INTERRUPTED
        except BrokenPipeError:
            # The reader of our output left, e.g. head; nothing may be flushed to it at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return FAILED
        except Exception as error:
            traceback.print_exc()
            _say(f"error: {type(error).__name__}: {_line(error)}")
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


def run(args: argparse.Namespace) -> int:
    """One experiment."""
    import rayfl
    from rayfl import console

    progress = None if args.quiet else console.Progress()
    try:
        result = rayfl.run(
            args.source,
            overrides=args.settings,
            with_files=args.with_files,
            out=args.out,
            resume=args.resume,
            observers=() if progress is None else (progress,),
        )
    finally:
        if progress is not None:
            progress.close()
    if args.json:
        _print_json(
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
        print(console.summary(result, args.out))
    return DONE if result.status == "FINISHED" else FAILED


def show(args: argparse.Namespace) -> int:
    """The resolved config, and what the settings changed."""
    from rayfl import loading
    from rayfl.config import flatten

    if args.source.endswith((".yaml", ".yml")) and "grid" in loading.read_yaml(args.source):
        return _show_sweep(args)
    config = loading.load_experiment(args.source, args.settings, args.with_files)
    before = flatten(loading.load_experiment(args.source).to_dict())
    after = flatten(config.to_dict())
    changed = {
        key: [before.get(key), after.get(key)]
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key) != after.get(key)
    }
    if args.json:
        _print_json({"config": config.to_dict(), "cell_hash": config.cell_hash, "changed": changed})
        return DONE
    print(loading.dump(config), end="")
    print(f"# cell {config.cell_hash}")
    for key, (old, new) in changed.items():
        print(f"# {key}: {json.dumps(new)}, in {args.source}: {json.dumps(old)}")
    if not changed:
        print(f"# nothing differs from {args.source}")
    return DONE


def _show_sweep(args: argparse.Namespace) -> int:
    from rayfl import loading, text
    from rayfl.config import flatten

    sweep = loading.load_sweep(args.source, args.settings, args.with_files)
    cells = sweep.cells()
    flat = [flatten(cell.to_dict()) for cell in cells]
    layers = [{axis: value} for axis, values in sweep.grid.items() for value in values]
    asked = {key for layer in (*layers, *(rule.set for rule in sweep.when)) for key in flatten(layer)}
    varying = [key for key in flat[0] if key in asked]
    rows = [{key: cell.get(key) for key in varying} for cell in flat]
    if args.json:
        hashed = [{"cell_hash": cell.cell_hash, **row} for cell, row in zip(cells, rows, strict=True)]
        _print_json({"name": sweep.name, "cells": hashed})
        return DONE
    print(f"{sweep.name}: {len(cells)} cells; what the grid sets:")
    body = [[cell.cell_hash, *row.values()] for cell, row in zip(cells, rows, strict=True)]
    print(text.columns([["cell", *varying], *body]))
    return DONE


def sweep(args: argparse.Namespace) -> int:
    """A grid of experiments."""
    from rayfl import loading, sweeps
    from rayfl.progress import Silent, SweepProgress

    plan = loading.load_sweep(args.source, args.settings, args.with_files)
    progress = Silent() if args.quiet else SweepProgress()
    frame = sweeps.run_sweep(plan, args.out, args.retry_failed, args.max_concurrent, progress)
    from rayfl.report.table import grid_table

    table = grid_table(frame)
    cells = frame.to_dict(orient="records")
    failed = [cell for cell in cells if cell["status"] not in ("FINISHED", "DIVERGED")]
    if args.json:
        status = "FAILED" if failed else "FINISHED"
        _print_json({"status": status, "cells": cells, "table": table.markdown()})
    else:
        print(table.plain(colour=sys.stdout.isatty()))
        print(f"results in {args.out}\nbrowse them with: rayfl ui --out {args.out}")
    if failed:
        _say(f"error: {len(failed)} of {len(cells)} cells failed: run it again with --retry-failed")
    return FAILED if failed else DONE


def list_names(args: argparse.Namespace) -> int:
    """What there is to choose from."""
    rows = _LISTS[args.kind]()
    if args.json:
        _print_json({args.kind: [dict(zip(("name", "description"), row, strict=True)) for row in rows]})
    else:
        from rayfl import text

        print(text.columns(rows))
    return DONE


def _methods() -> list[tuple[str, str]]:
    from rayfl.algorithms import FAMILIES

    return [
        (name, f"{_first_line(sys.modules[method.__module__].__doc__)} [{family}]")
        for family, methods in FAMILIES.items()
        for name, method in methods.items()
    ]


def _datasets() -> list[tuple[str, str]]:
    from rayfl.data import DATASETS

    return [(name, info.description) for name, info in DATASETS.items()]


def _models() -> list[tuple[str, str]]:
    from rayfl.models import MODELS

    return [(name, description) for name, (_, description) in MODELS.items()]


def _partitions() -> list[tuple[str, str]]:
    from rayfl.data import SCHEMES

    return list(SCHEMES.items())


def _presets() -> list[tuple[str, str]]:
    folder = Path(__file__).parent / "presets"
    files = sorted(folder.glob("*.yaml"))
    return [(file.stem, file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")) for file in files]


_LISTS = {
    "methods": _methods,
    "datasets": _datasets,
    "models": _models,
    "presets": _presets,
    "partitions": _partitions,
}


def partition(args: argparse.Namespace) -> int:
    """Who holds what, before anything is trained."""
    from rayfl import data, loading, text

    config = loading.load_experiment(args.source, args.settings, args.with_files)
    federated = data.load(config.data, config.seed)
    divided, train = federated.partition, federated.train
    title = data.describe(config.data, config.seed)
    statistics = divided.statistics(train.labels, train.num_classes)
    try:
        if args.picture:
            data.draw_partition(divided, train.labels, train.num_classes, args.picture, title)
        if args.save:
            data.save_partition(divided, args.save, train.labels)
    except (OSError, ValueError) as error:
        raise UserError(f"can't write the partition: {error}; choose another place") from error
    if args.json:
        _print_json(
            {
                "partition_hash": divided.hash,
                "sizes": statistics.sizes.tolist(),
                "counts": statistics.counts.tolist(),
                "edges": list(federated.client_edges),
                "validation": len(federated.validation_indices),
                "size_cv": statistics.size_cv,
                "classes_held": statistics.classes_held,
                "top_share": statistics.top_share,
                "total_variation": statistics.total_variation,
            }
        )
        return DONE
    shown, classes = min(len(statistics.sizes), 60), min(train.num_classes, 20)
    rows: list[list[object]] = [["client", "edge", "samples", *(f"class {k}" for k in range(classes))]]
    for client in range(shown):
        counts = [count or "." for count in statistics.counts[client][:classes].tolist()]
        rows.append([client, federated.client_edges[client], statistics.sizes[client], *counts])
    print(text.columns(rows))
    if shown < len(statistics.sizes) or classes < train.num_classes:
        print(f"(the first {shown} clients and {classes} classes; --json has all)")
    print(f"{title}: {statistics.line()}")
    print(f"{len(federated.validation_indices)} validation and {len(federated.test)} test samples")
    print(f"partition hash {divided.hash}")
    return DONE


def ui(args: argparse.Namespace) -> int:
    """MLflow's pages over the results, for this machine only."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or ""
    if re.match(r"https?://", uri):
        print(f"the runs are on the server of MLFLOW_TRACKING_URI: open {uri}")
        return DONE
    from rayfl import tracking
    from rayfl.config import TrackingConfig

    if not uri and not (Path(args.out) / "mlflow.db").exists():
        raise UserError(f"no results in '{args.out}' (mlflow.db is missing): run something or give --out")
    uri = tracking.store_uri(TrackingConfig(), Path(args.out))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", args.port))
        except (OSError, OverflowError) as error:
            raise UserError(f"port {args.port} is not free: give another one by --port") from error
    _say(f"http://127.0.0.1:{args.port} shows {uri}; stop with Ctrl-C")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"])
    # Told to end, this process must not leave the server behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise RunFailed(f"the MLflow server ended with exit code {code}: its own messages stand above")
    return DONE


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rayfl",
        description="Federated, split and hierarchical learning experiments, reproducible to the bit.",
        epilog="Start with: rayfl run splitfed_v1.mnist5k. Examples: rayfl <command> --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(title="commands", dest="name", required=True, metavar="command")

    def command(name: str, action: Callable[[argparse.Namespace], int], text: str, examples: str) -> _Parser:
        sub: _Parser = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=action, parser=sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object, last on stdout")
        return sub

    def takes_config(sub: _Parser, what: str) -> None:
        sub.add_argument("source", metavar="SOURCE", help=what)
        sub.add_argument(
            "settings", metavar="key=value", nargs="*", default=[], help="settings, e.g. rounds=5"
        )
        sub.add_argument("--with", dest="with_files", metavar="FILE", action="append", default=[],
                         help="lay a YAML file over SOURCE; may be repeated")  # fmt: skip
        sub.epilog = f"{_SETTINGS}\n\n{sub.epilog}"

    def takes_out(sub: _Parser, text: str) -> None:
        sub.add_argument(
            "--out", metavar="DIR", default="rayfl-results", help=f"{text} (default: rayfl-results)"
        )

    sub = command("run", run, "Run one experiment.", _RUN)
    takes_config(sub, "a preset or a YAML file")
    takes_out(sub, "folder of all results")
    sub.add_argument("--resume", action="store_true", help="go on from this experiment's last checkpoint")
    sub.add_argument("--quiet", action="store_true", help="no progress lines")

    sub = command("sweep", sweep, "Run a grid of experiments; finished cells are not run again.", _SWEEP)
    takes_config(sub, "a YAML file with a grid")
    takes_out(sub, "folder of all results")
    sub.add_argument("--retry-failed", action="store_true", help="run cells again that failed")
    sub.add_argument(
        "--max-concurrent", metavar="N", type=_count, help="most cells at once (default: as fit)"
    )
    sub.add_argument("--quiet", action="store_true", help="no progress lines")

    sub = command("list", list_names, "List what there is to choose from.", _LIST)
    sub.add_argument("kind", choices=tuple(_LISTS), metavar="kind", help=", ".join(_LISTS))

    sub = command("show", show, "Print the resolved config and what differs from SOURCE; run nothing.", _SHOW)
    takes_config(sub, "a preset or a YAML file; of a sweep, its cells are shown")

    sub = command("partition", partition, "Show who holds what: a table, statistics, a picture.", _PARTITION)
    takes_config(sub, "a preset or a YAML file")
    sub.add_argument("--picture", metavar="FILE", help="draw it as a PNG")
    sub.add_argument(
        "--save", metavar="FILE", help="write it as .npz, for data.partition={kind: file, path: FILE}"
    )

    sub = command("ui", ui, "Browse the results in MLflow, at 127.0.0.1.", _UI)
    takes_out(sub, "folder whose results are shown, unless MLFLOW_TRACKING_URI says where they are")
    sub.add_argument("--port", type=_count, default=5000, help="port (default: 5000)")
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from importlib.metadata import version

        print(f"rayfl {version('rayfl')}")
        parser.exit()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 was wanted, got '{text}'")
    return int(text)


_RUN = """\
  rayfl run splitfed_v1.mnist5k
  rayfl run fedavg.mnist5k algorithm.lr=0.05 data.partition='{kind: dirichlet, alpha: 0.1}'
  rayfl run hsfl.mnist5k rounds=50 --resume --out results
  rayfl run fedavg.digits algorithm.name=my_module:MyMethod --with my_gpu.yaml --json"""
_SWEEP = """\
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
_LIST = "  rayfl list methods\n  rayfl list presets --json"
_SHOW = "  rayfl show splitfed_v1.mnist5k algorithm.lr=0.05\n  rayfl show tune_configs/demo.yaml"
_PARTITION = """\
  rayfl partition splitfed_v1.mnist5k
  rayfl partition fedavg.mnist5k data.partition='{kind: dirichlet, alpha: 0.1}' --picture who.png"""
_UI = "  rayfl ui\n  rayfl ui --out results --port 5001"


def _how_to_go_on(arguments: Sequence[str]) -> str:
    """The command that continues an interrupted one."""
    again = shlex.join(["rayfl", *arguments])
    if "run" in arguments[:1]:
        return f": go on with {again}{'' if '--resume' in arguments else ' --resume'}"
    if "sweep" in arguments[:1]:
        return f": go on with {again} (finished cells are kept)"
    return ""


def _print_json(content: dict[str, Any]) -> None:
    from rayfl import text

    sys.stderr.flush()
    print(json.dumps(text.finite(content)), flush=True)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no further details"


def _say(text: str) -> None:
    print(f"rayfl: {text}", file=sys.stderr, flush=True)


class _ToStderr(logging.Handler):
    """One line per warning, to whatever stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}")


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    handler = _ToStderr(level=logging.WARNING)
    logger = logging.getLogger("rayfl")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
