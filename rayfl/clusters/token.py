"""The token that a Ray head may ask for, looked up where Ray looks it up.

RAY_AUTH_TOKEN, else the file that RAY_AUTH_TOKEN_PATH names, else ~/.ray/auth_token
(https://docs.ray.io/en/latest/ray-security/token-auth.html). A token is never printed or logged.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from rayfl.errors import UserError


@dataclass(frozen=True)
class Token:
    """A token and where it was found."""

    text: str = field(repr=False)
    place: str


def find_token() -> Token | None:
    """The first one there is; UserError where a named file has none."""
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return _checked(given, "RAY_AUTH_TOKEN")
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named:
        content = _read(Path(named).expanduser())
        if content is None:
            raise UserError(
                f"RAY_AUTH_TOKEN_PATH names '{named}', where no token can be read: correct it, or unset it"
            )
        return _checked(content, f"'{named}' (RAY_AUTH_TOKEN_PATH)")
    content = _read(Path.home() / ".ray" / "auth_token")
    return None if content is None else _checked(content, "~/.ray/auth_token")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _checked(text: str, place: str) -> Token:
    """What can't stand in a header would be shown whole by the error that it causes."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UserError(f"what {place} holds is no token (one word of plain characters): correct it")
    return Token(text, place)
