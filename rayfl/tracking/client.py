"""MLflow as a library: quiet, impatient, and leaving the caller's process as it was."""

import functools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CONNECT_S = 4
"""Seconds within which a store must be reached."""
ANSWER_S = 8
"""Seconds that a server then has to answer; the user's MLFLOW_HTTP_REQUEST_TIMEOUT wins."""
LAST_ANSWER_S = 60
"""The same when a run has ended and nothing waits any more."""
_TURN = threading.RLock()
_CHATTY = ("mlflow", "alembic", "urllib3.connectionpool")


@contextmanager
def library(answer_s: int = ANSWER_S) -> Iterator[Any]:
    """The module, for as long as the block lasts.

    What the user set in the environment wins. rayfl's own settings replace MLflow's defaults only inside the
    block and never enter the environment, where worker processes would inherit them. One thread at a time.
    """
    with _TURN, _settings(answer_s) as mlflow:
        yield mlflow


@contextmanager
def _settings(answer_s: int) -> Iterator[Any]:
    mlflow = _module()
    variables = mlflow.environment_variables
    mine = {
        variables.MLFLOW_HTTP_REQUEST_TIMEOUT: answer_s,
        variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES: 0,
        variables.MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT: True,
    }
    before = {variable: variable.default for variable in mine}
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for variable, value in mine.items():
            variable.default = value
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield mlflow
    finally:
        for variable, value in before.items():
            variable.default = value
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@functools.cache
def _module() -> Any:
    """MLflow asks for its telemetry setting once, while it is imported."""
    unset = "MLFLOW_DISABLE_TELEMETRY" not in os.environ
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import mlflow
        import mlflow.environment_variables
    finally:
        if unset:
            del os.environ["MLFLOW_DISABLE_TELEMETRY"]
    return mlflow
