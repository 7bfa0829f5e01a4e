"""``rayfl ui``: MLflow over the results."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from rayfl.commands.command import DONE, Command, count, say, takes_out
from rayfl.errors import RunFailed, UserError

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore",
}


def ui(args: argparse.Namespace) -> int:
    """MLflow's pages over the results, for this machine only."""
    asked = os.environ.get("MLFLOW_TRACKING_URI") or ""
    if not asked and not (Path(args.out) / "mlflow.db").exists():
        raise UserError(f"no results in '{args.out}' (mlflow.db is missing): run something or give --out")
    from rayfl import tracking
    from rayfl.config import TrackingConfig

    uri = tracking.store_uri(TrackingConfig(), Path(args.out))
    if tracking.is_server(uri):
        print(f"the runs are on the server of MLFLOW_TRACKING_URI: open {tracking.shown(uri)}")
        return DONE
    _check_port(args.port)
    if not uri.startswith("sqlite:"):
        tracking.log_in(uri)
    say("starting MLflow, which takes some seconds")
    command = [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]
    # The URI goes through the environment: a command line, with the password in it, is shown to everybody.
    environment = {**os.environ, **_SETTINGS, "MLFLOW_BACKEND_STORE_URI": uri}
    # In a session of its own, so that Ctrl-C reaches this process alone, which then ends the server quietly.
    server = subprocess.Popen(command, start_new_session=True, env=environment)
    # Told to end, this process must not leave the server behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while server.poll() is None and not _answers(args.port):
            time.sleep(0.2)
        if server.poll() is None:
            say(f"http://127.0.0.1:{args.port} shows {tracking.shown(uri)}; stop with Ctrl-C")
        code = server.wait()
    except KeyboardInterrupt:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise RunFailed(f"the MLflow server ended with exit code {code}: its own messages stand above")
    return DONE


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OverflowError as error:
            raise UserError(f"a port is at most 65535, got {port}: give another one by --port") from error
        except OSError as error:
            raise UserError(f"port {port} is not free: give another one by --port") from error


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl ui`` takes."""
    takes_out(parser, "folder whose results are shown, unless MLFLOW_TRACKING_URI says where they are")
    parser.add_argument("--port", type=count, default=5000, help="port (default: 5000)")


EXAMPLES = "  rayfl ui\n  rayfl ui --out results --port 5001"

COMMAND = Command(
    name="ui",
    help="Browse the results in MLflow, at 127.0.0.1.",
    examples=EXAMPLES,
    arguments=arguments,
    main=ui,
)
