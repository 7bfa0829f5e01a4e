"""What went wrong with a store, in one line that says what to do and holds no secret."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from rayfl.errors import UserError
from rayfl.tracking.address import is_server, shown, without_secrets
from rayfl.tracking.client import ANSWER_S, library

_OR_ELSE = "set tracking.uri, or tracking.enabled=false"


@contextmanager
def demanded(uri: str, experiment: str = "") -> Iterator[Any]:
    """MLflow, where nothing can go on without the store: trouble is a UserError."""
    try:
        with library() as mlflow:
            yield mlflow
    except UserError:
        raise
    except Exception as error:
        # Without its cause: MLflow's messages quote the URI, password and all.
        raise UserError(refusal(uri, error, experiment)) from None


def reason(error: BaseException, uri: str) -> str:
    """The first line of an error, fit to be shown."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_secrets(lines[0], uri)[:200]


def refusal(uri: str, error: BaseException, experiment: str = "") -> str:
    """Why a store can't be used, and what to do."""
    place, why = shown(uri), reason(error, uri)
    code = getattr(error, "error_code", None)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        came = f"refuses the login of '{user}'" if user else "wants a login"
        return (
            f"the MLflow server at '{place}' {came}: set MLFLOW_TRACKING_USERNAME and "
            f"MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
        )
    if code == "PERMISSION_DENIED":
        # What a server with a login says of a wrong path as well.
        path = urlsplit(uri).path.rstrip("/")
        return (
            f"'{user}' may not write to the MLflow experiment '{experiment}' at '{place}': ask for EDIT "
            f"permission, or set tracking.experiment{f', or check the path {path}' if path else ''}"
        )
    if is_server(uri) and "ReadTimeoutError" in str(error):
        return (
            f"the MLflow server at '{place}' is there and does not answer: see its log, or give it more than "
            f"the seconds of MLFLOW_HTTP_REQUEST_TIMEOUT (default here: {ANSWER_S}); {_OR_ELSE}"
        )
    tls = re.search(r"\[SSL[^]]*\][^('\"]*", str(error))
    if tls:
        return (
            f"no TLS with '{place}' ({tls[0].strip()}): check http or https; a certificate of your own goes "
            f"into MLFLOW_TRACKING_SERVER_CERT_PATH"
        )
    if code == "ENDPOINT_NOT_FOUND" or "not in a valid JSON format" in why:
        return f"what answers at '{place}' is no MLflow server: check the path; {_OR_ELSE}"
    if isinstance(error, ModuleNotFoundError):
        return f"the MLflow store '{place}' needs the Python package '{error.name}': install it; {_OR_ELSE}"
    if isinstance(error, OSError) and is_server(uri):
        return f"no MLflow server answers at '{place}' ({why}): start it; {_OR_ELSE}"
    return f"can't open the MLflow store '{place}': {why}; {_OR_ELSE}"
