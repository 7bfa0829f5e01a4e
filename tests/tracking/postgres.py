"""A PostgreSQL of one's own: installed where that is possible, started in a folder, stopped afterwards."""

import glob
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def postgres(port: int) -> Iterator[str]:
    """A database on loopback with a password; its URI comes out. Skips the test where there is none."""
    programs, password = _programs(), secrets.token_urlsafe(16)
    # PostgreSQL refuses to run as root, and what pytest calls temporary is closed to everybody else.
    user = NOBODY if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="rayfl-postgres-") as place:
        folder = Path(place)
        (folder / "password").write_text(password)
        if user is not None:
            for path in (folder, folder / "password"):
                os.chown(path, user, user)

        def call(program: str, *arguments: str) -> None:
            done = subprocess.run(
                [programs / program, "-D", folder / "data", *arguments],
                user=user, group=user, extra_groups=None if user is None else [],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

        secret = f"--pwfile={folder / 'password'}"
        call("initdb", "--username=rayfl", "--auth=scram-sha-256", secret, "--no-sync")
        options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        call("pg_ctl", "-w", "-o", options, "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql+psycopg2://rayfl:{password}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")


def _programs() -> Path:
    """The folder of initdb and pg_ctl, after installing Debian's package if need be and possible."""
    found = _installed()
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", "-qq", *arguments], env=environment, capture_output=True, check=False)
        found = _installed()
    if found is None:
        pytest.skip("PostgreSQL is not here and can't be installed: apt-get install postgresql, as root")
    return found


def _installed() -> Path | None:
    found = shutil.which("initdb") or max(glob.glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    return None if found is None else Path(found).resolve().parent
