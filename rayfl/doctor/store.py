"""The MLflow store that runs would use: opened as a run opens it."""

from collections.abc import Iterator
from pathlib import Path

from rayfl import places
from rayfl.doctor.finding import Finding, Request, ok, problem, warning


def check(request: Request) -> Iterator[Finding]:
    """Raises UserError, in the words of a run, where it can't be opened or written."""
    from rayfl import tracking
    from rayfl.config import TrackingConfig
    from rayfl.tracking.address import sqlite_path

    config, out = TrackingConfig(), Path(request.out)
    uri = tracking.store_uri(config, out)
    path = sqlite_path(uri)
    network = None if path is None else places.network_file_system(path)
    if network:
        yield warning(
            f"{path} is on a network file system ({network}), whose locks SQLite can't rely on",
            "set MLFLOW_TRACKING_URI to a server's address or to a file on a disk of this machine",
        )
    if path is None or path.exists():
        tracking.prepare(uri, config.experiment, out / "mlartifacts")
        yield ok(f"{tracking.shown(uri)} opens and can be written")
    elif places.can_write(path.parent):
        yield ok(f"the first run makes {path}")
    else:
        yield problem(
            f"{path} can't be made, {places.obstacle(path.parent)}",
            "choose another folder with --out, or set MLFLOW_TRACKING_URI",
        )
