"""Finding the head of a Ray cluster: its address, whether it answers, and whether it wants a token."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

from rayfl.clusters.token import Token, find_token
from rayfl.errors import UserError

HERE = "http://127.0.0.1:8265"
TIMEOUT_S = 5.0
_HOW = "ray start --head starts one; --address or RAY_API_SERVER_ADDRESS says where it is"


@dataclass(frozen=True)
class Head:
    """Where jobs are sent."""

    url: str
    ray_version: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What proves that we may; secret."""


def find_head(address: str | None) -> Head:
    """The head at an address; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else this machine.

    Raises UserError, within seconds, where none answers or it does not let us in.
    """
    environment = (os.environ.get(name) for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"))
    address = address or next(filter(None, environment), HERE)
    reasons = []
    for url in _candidates(address):
        try:
            mode = _mode(url)
        except (OSError, HTTPException, ValueError) as error:
            reasons.append(str(getattr(error, "reason", error)))
            continue
        return _enter(url, find_token() if mode == "token" else None, mode)
    raise UserError(f"no Ray head answers at {address} ({reasons[0]}): {_HOW}")


def _candidates(address: str) -> list[str]:
    """Where the Jobs API may be. Ray's own addresses (auto, host:6379, ray://host:10001) have other ports."""
    if address in ("auto", "local"):
        return [HERE]
    if address.startswith(("http://", "https://")):
        return [address.rstrip("/")]
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("", "ray"):
        raise UserError(f"the address of a head looks like {HERE}, got '{address}'")
    host = f"[{host}]" if ":" in host else host
    given = [f"http://{host}:{port}"] if port is not None and not parts.scheme else []
    return [*given, f"http://{host}:8265"]


def _mode(url: str) -> str:
    """``token`` or ``disabled``; heads before Ray 2.52 know no modes."""
    try:
        return str(_get(f"{url}/api/authentication_mode", {})["authentication_mode"])
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return "disabled"
    except KeyError as error:
        raise ValueError("what answers is not Ray") from error


def _enter(url: str, token: Token | None, mode: str) -> Head:
    """The head, once it has let us in."""
    if token is None and mode == "token":
        raise UserError(
            f"the head at {url} asks for a token (RAY_AUTH_MODE=token) and there is none here: set "
            f"RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or put the head's ~/.ray/auth_token at the same place"
        )
    headers = {"Authorization": f"Bearer {token.text}"} if token is not None else {}
    try:
        return Head(url, str(_get(f"{url}/api/version", headers)["ray_version"]), headers)
    except (OSError, HTTPException, ValueError, KeyError) as error:
        if token is not None and getattr(error, "code", None) in (401, 403):
            raise UserError(
                f"the head at {url} refuses the token of {token.place}: it runs with RAY_AUTH_MODE=token "
                f"and another token, the one that `ray get-auth-token` prints there"
            ) from None
        raise UserError(f"what answers at {url} is not the head of a Ray cluster ({error}): {_HOW}") from None


def _get(url: str, headers: Mapping[str, str]) -> dict[str, object]:
    request = urllib.request.Request(url)
    for name, value in headers.items():
        # A redirect may lead to somebody who must not see the token.
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise
    if not isinstance(content, dict):
        raise ValueError("what answers is not Ray")
    return content
