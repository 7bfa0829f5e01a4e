"""Finding a head, against small servers that answer as heads do."""

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rayfl.clusters import head
from rayfl.clusters.head import find_head
from rayfl.errors import UserError

TOKEN = "t0ken-of-the-head"
Serve = Callable[..., str]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server: the mode that it reports (None as before Ray 2.52), and what else it does."""
    servers: list[HTTPServer] = []

    def start(mode: str | None, body: str = '{"ray_version": "2.60.0"}', to: str = "") -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, content = 200, body
                if self.path == "/api/authentication_mode":
                    status, content = (200, json.dumps({"authentication_mode": mode})) if mode else (404, "")
                elif mode == "token" and "Authorization" not in self.headers:
                    status = 401
                elif mode == "token" and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status = 403
                elif to:
                    status = 302
                seen.append((self.path, self.headers.get("Authorization")))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", to + self.path)
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    seen.clear()
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


seen: list[tuple[str, str | None]] = []
"""Paths that were asked for, with the header that came along."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_head_that_asks_for_none_gets_no_token(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    found = find_head(serve(mode) + "/")
    assert (found.ray_version, dict(found.headers)) == ("2.60.0", {})
    assert {header for _, header in seen} == {None}


def test_a_head_that_asks_gets_the_token(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve("token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    found = find_head(url)
    assert found.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in repr(found)
    assert seen[0] == ("/api/authentication_mode", None)


def test_a_missing_token_is_named_with_all_its_places(serve: Serve) -> None:
    url = serve("token")
    with pytest.raises(UserError) as caught:
        find_head(url)
    for part in (url, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"):
        assert part in str(caught.value)


def test_a_wrong_token_is_refused_and_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    with pytest.raises(UserError, match="refuses the token of RAY_AUTH_TOKEN") as caught:
        find_head(serve("token"))
    assert "another" not in str(caught.value).replace("another token", "")


def test_a_redirect_does_not_carry_the_token_elsewhere(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    elsewhere = serve("disabled")
    find_head(serve("token", to=elsewhere))
    assert seen[-1] == ("/api/version", None)
    assert seen[-2] == ("/api/version", f"Bearer {TOKEN}")


def test_the_address_is_the_option_then_the_variables(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (serve("disabled") for _ in range(3))
    monkeypatch.setenv("RAY_ADDRESS", first)
    assert find_head(None).url == first
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", second)
    assert find_head(None).url == second
    assert find_head(third).url == third


def test_without_any_it_is_this_machine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    here = serve("disabled")
    monkeypatch.setattr(head, "HERE", here)
    assert find_head(None).url == here
    assert find_head("auto").url == here


@pytest.mark.parametrize(
    ("address", "urls"),
    [
        ("10.0.0.1:6379", ["http://10.0.0.1:6379", "http://10.0.0.1:8265"]),
        ("ray://10.0.0.1:10001", ["http://10.0.0.1:8265"]),
        ("head", ["http://head:8265"]),
        ("[::1]:6379", ["http://[::1]:6379", "http://[::1]:8265"]),
        ("https://head.example.org/", ["https://head.example.org"]),
    ],
)
def test_rays_own_addresses_lead_to_the_jobs_api(address: str, urls: list[str]) -> None:
    assert head._candidates(address) == urls


@pytest.mark.parametrize("address", ["head:port", "gopher://head", ""])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(UserError, match="http://"):
        head._candidates(address)


def test_nobody_there_is_said_at_once() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=f"no Ray head answers at {url} .*--address"):
        find_head(url)


def test_a_head_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(request: object, timeout: float) -> None:
        assert timeout == head.TIMEOUT_S
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", silent)
    with pytest.raises(UserError, match=r"no Ray head answers at http://head:8265 \(timed out\)"):
        find_head("http://head:8265")


@pytest.mark.parametrize("body", ["<html>", "[]", '{"version": "3"}'])
def test_another_server_is_not_taken_for_a_head(serve: Serve, body: str) -> None:
    with pytest.raises(UserError, match="is not the head of a Ray cluster"):
        find_head(serve(None, body=body))
