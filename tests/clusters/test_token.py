"""Where the token is looked for, and that nobody gets to see it."""

from pathlib import Path

import pytest

from rayfl.clusters.token import find_token
from rayfl.errors import UserError


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_order_is_rays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_token() is None
    write(home / ".ray" / "auth_token", "from-default\n")
    found = find_token()
    assert found is not None
    assert (found.text, found.place) == ("from-default", "~/.ray/auth_token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(write(home / "mine", "  from-path \n")))
    found = find_token()
    assert found is not None
    assert found.text == "from-path"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from-variable")
    found = find_token()
    assert found is not None
    assert (found.text, found.place) == ("from-variable", "RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    found = find_token()
    assert found is not None
    assert found.text == "from-path"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_named_file_without_a_token_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """As in Ray, which does not fall back to the default file either."""
    write(home / ".ray" / "auth_token", "from-default")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "mine"))
    if content is not None:
        write(home / "mine", content)
    with pytest.raises(UserError, match="RAY_AUTH_TOKEN_PATH"):
        find_token()


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "caf\u00e9", "tab\tbed"])
def test_what_no_header_can_hold_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", text)
    with pytest.raises(UserError, match="RAY_AUTH_TOKEN holds is no token") as caught:
        find_token()
    assert text not in str(caught.value)


def test_a_token_is_not_in_its_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret")
    assert "s3cret" not in repr(find_token())
