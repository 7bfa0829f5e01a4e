"""A real MLflow server with its basic-auth app, in processes of its own."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

READER, WRITER = "reader", "writer"
"""Two users: who may only read, and who may log."""


class Server:
    """``mlflow server`` on loopback, over some database; can be killed and started again."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.port = free_port()
        self.passwords = {name: secrets.token_urlsafe(12) for name in ("admin", READER, WRITER)}
        (folder / "auth.ini").write_text(
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = {database}\nadmin_username = admin\n"
            "auth_cache_ttl_seconds = 600\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def login(self, name: str) -> dict[str, str]:
        """The environment of a user."""
        return {
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_USERNAME": name,
            "MLFLOW_TRACKING_PASSWORD": self.passwords[name],
        }

    def start(self) -> None:
        """Start, unless it is running, and wait until it answers."""
        if self._process is not None:
            return
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "auth.ini"),
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.passwords["admin"],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(16),
            "MLFLOW_BACKEND_STORE_URI": self.database,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        until = time.monotonic() + 300
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < until, "the MLflow server does not come up"
            time.sleep(0.2)

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """The server's machine takes connections and answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """End of the pause."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def make_users(self) -> None:
        """Add the users; they may read everything and what they create is theirs."""
        for name in (READER, WRITER):
            body = f'{{"username": "{name}", "password": "{self.passwords[name]}"}}'.encode()
            self.ask("/api/2.0/mlflow/users/create", body)

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """A request of the admin's."""
        passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
        passwords.add_password(None, self.uri, "admin", self.passwords["admin"], is_authenticated=True)
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
        request = urllib.request.Request(self.uri + path, body, {"Content-Type": "application/json"})
        with opener.open(request, timeout=60) as answer:
            return answer.read()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def free_port() -> int:
    """A port of this machine that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
