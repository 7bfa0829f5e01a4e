"""MLflow as a library: quiet, impatient, and never in the way of training."""

import functools
import logging
import os
from typing import Any

CONNECT_S = 4
"""Seconds that a server has to answer."""
_LOG = logging.getLogger("rayfl.tracking")


@functools.cache
def mlflow_module() -> Any:
    """The module, quiet, and impatient with servers that don't answer."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(CONNECT_S),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


_silenced = False


def guarded(write: Any) -> bool:
    """Write to the store; a failure is a warning, once, since training must not hang on a logbook."""
    global _silenced
    try:
        write()
    except Exception as error:
        if not _silenced:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _LOG.warning("MLflow takes no more metrics for now (%s); the run goes on", reason)
        _silenced = True
        return False
    _silenced = False
    return True
