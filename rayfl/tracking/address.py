"""Where the tracking store is: its URI, with and without its secrets, and whether anything is there."""

import os
import re
import socket
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from rayfl.config import TrackingConfig
from rayfl.errors import UserError
from rayfl.tracking.client import CONNECT_S

_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_SECRET = re.compile(r"[?&;](\w*(password|passwd|pwd|token|secret)\w*|odbc_connect)=", re.IGNORECASE)
_LIBPQ = ("postgresql", "postgresql+psycopg2", "postgresql+psycopg")
_POSTGRES = {
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": 1000 * CONNECT_S,
    "keepalives_idle": CONNECT_S,
    "keepalives_interval": 1,
    "keepalives_count": CONNECT_S,
}
"""A server that vanished is noticed after seconds, not hours."""


def store_uri(config: TrackingConfig, out: Path) -> str:
    """The store's absolute URI: the config's, else MLFLOW_TRACKING_URI, else SQLite in ``out``.

    It may hold a password, if MLFLOW_TRACKING_URI does: show it through ``shown``. A config is written down
    with the results, so a password in it is refused.
    """
    asked = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not asked:
        return f"sqlite:///{out.resolve() / 'mlflow.db'}"
    if config.uri and holds_secret(config.uri):
        raise UserError(
            f"a password in tracking.uri would be written down with the results, got '{shown(config.uri)}': "
            f"set the whole URI as MLFLOW_TRACKING_URI in the environment instead"
        )
    scheme = urlsplit(asked).scheme
    if scheme in ("", "file"):
        raise UserError(
            f"MLflow no longer keeps runs in a folder, got '{asked}': use a database, "
            f"e.g. tracking.uri=sqlite:///mlflow.db"
        )
    if scheme != "sqlite":
        return _impatient(asked) if scheme in _LIBPQ else asked
    path = sqlite_path(asked)
    if path is None:
        raise UserError(f"a store that lasts looks like sqlite:///path/to/mlflow.db, got '{asked}'")
    return f"sqlite:///{path.resolve()}"


def kind(uri: str) -> str:
    """The scheme without its driver: http, https, sqlite, postgresql, mysql, mssql."""
    return urlsplit(uri).scheme.partition("+")[0]


def is_server(uri: str) -> bool:
    """Whether an MLflow server keeps the runs, not a database."""
    return kind(uri) in ("http", "https")


def sqlite_path(uri: str) -> Path | None:
    """The file of an SQLite store."""
    path = unquote(uri.removeprefix("sqlite:///"))
    return Path(path) if uri.startswith("sqlite:///") and path not in ("", ":memory:") else None


def shown(uri: str) -> str:
    """The URI without password and query: what is printed and written down, and tells stores apart."""
    parts = urlsplit(uri)
    if kind(uri) == "sqlite":
        return uri
    user, at, host = parts.netloc.rpartition("@")
    hidden = f"{user.partition(':')[0]}:***" if ":" in user else user
    return parts._replace(netloc=hidden + at + host, query="", fragment="").geturl()


def holds_secret(uri: str) -> bool:
    """Whether a password is in it."""
    user, _, _ = urlsplit(uri).netloc.rpartition("@")
    return ":" in user or bool(_SECRET.search(uri))


def without_secrets(text: str, uri: str) -> str:
    """A message that may quote the URI, as it can be shown."""
    text = text.replace(uri, shown(uri))
    parts = urlsplit(uri)
    hidden = [parts.netloc.rpartition("@")[0].partition(":")[2]]
    hidden += [pair.partition("=")[2] for pair in parts.query.split("&") if _SECRET.search(f"?{pair}")]
    secrets = {*hidden, *map(unquote, hidden)}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def reach(uri: str) -> None:
    """Find within seconds that a store can't be written to: what MLflow itself would wait for much longer.

    Raises OSError or sqlite3.Error.
    """
    path = sqlite_path(uri)
    if path is not None:
        with closing(sqlite3.connect(path, timeout=CONNECT_S, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        return
    parts = urlsplit(uri)
    port = parts.port or _PORTS.get(kind(uri))
    if parts.hostname and port and not _by_proxy(parts.scheme, parts.hostname):
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()


def _by_proxy(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def _impatient(uri: str) -> str:
    parts = urlsplit(uri)
    given = [key for key, _ in parse_qsl(parts.query, keep_blank_values=True)]
    more = [f"{key}={value}" for key, value in _POSTGRES.items() if key not in given]
    return parts._replace(query="&".join(filter(None, [parts.query, *more]))).geturl()
