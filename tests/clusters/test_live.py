"""A real head that asks for a token: submit, follow, list, stop, fetch."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import rayfl
from rayfl import cli
from rayfl.clusters.head import find_head
from rayfl.errors import UserError

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TOKEN = "a-token-for-this-test"
RUN = ["fedavg.digits", "rounds=1", "tracking.enabled=false", "algorithm.name=my_method:Mine"]


def free_ports(count: int) -> list[str]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The Jobs API of a head with ports and a folder of its own."""
    gcs, dashboard, agent, client = free_ports(4)
    # Short, because Ray puts sockets there.
    folder = tempfile.mkdtemp(prefix="rh")
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += [f"--temp-dir={folder}", "--object-store-memory=100000000", "--disable-usage-stats"]
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "HOME": folder}
    address = f"http://127.0.0.1:{dashboard}"
    log = Path(folder, "start.log")
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        ) as head,
    ):
        try:
            _wait_until(lambda: _takes_jobs(address, int(agent)) or head.poll() is not None)
            assert head.poll() is None, log.read_text()
            yield address
        finally:
            head.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                head.wait(20)
            _kill_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _takes_jobs(address: str, agent: int) -> bool:
    """The head asks for a token, and the process that starts its jobs listens."""
    try:
        find_head(address)
    except UserError as error:
        if "RAY_AUTH_MODE=token" in str(error):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", agent), 1):
                return True
    return False


def _kill_all(folder: str) -> None:
    """Whatever still runs in that folder."""
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in word for word in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not done() and time.monotonic() < deadline:
        time.sleep(0.5)


@pytest.fixture
def at(url: str, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The options that lead to the head, and the token where RAY_AUTH_TOKEN_PATH says."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    # What must not lead anybody astray: the address is that of --address.
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    return ["--address", url]


def listed(at: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["jobs", "list", "--json", *at]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["jobs"]
    return found


def test_a_run_there_is_the_run_here(
    at: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a method of one's own, in actors of the cluster that the job runs on, down to the last bit."""
    out = tmp_path / "shared"
    fleet = ["fleet.kind=ray", "fleet.client_actors=1"]
    submit = ["submit", *at, "--python", sys.executable, "--", "run", *RUN, *fleet, "--out", str(out)]
    assert cli.main(submit) == 0
    shown = capsys.readouterr()
    assert "round 1/1" in shown.out
    assert "FINISHED after 1 round" in shown.out
    assert "sending my_helper.py, my_method.py, " in shown.err
    assert "SUCCEEDED" in shown.err
    assert TOKEN not in shown.out + shown.err
    (job,) = listed(at, capsys)
    assert (job["status"], job["out"]) == ("SUCCEEDED", str(out))

    assert cli.main(["jobs", "fetch", job["id"], *at, "--to", "home", "--json"]) == 0
    fetched = json.loads(capsys.readouterr().out)
    (result,) = [file for file in fetched["files"] if file.endswith("result.json")]
    monkeypatch.delenv("RAY_ADDRESS")
    here = rayfl.run(RUN[0], overrides=RUN[1:], out=tmp_path / "here")
    assert json.loads(Path(result).read_text())["weights_sha256"] == here.weights_sha256
    assert not list(Path("home").rglob("*.pt"))
    # The job that collected the results has gone again.
    assert [found["id"] for found in listed(at, capsys)] == [job["id"]]

    from ray.job_submission import JobSubmissionClient

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", at[1])
    details = JobSubmissionClient(headers={"Authorization": f"Bearer {TOKEN}"}).get_job_info(job["id"])
    assert details.driver_info is not None, "the run has started a Ray of its own"


def test_a_job_is_stopped_in_order(at: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It keeps a checkpoint, so that the same submission goes on."""
    out = tmp_path / "shared"
    run = ["run", "fedavg.digits", "rounds=5000", "tracking.enabled=false", "--out", str(out)]
    assert cli.main(["submit", *at, "--python", sys.executable, "--no-wait", "--", *run]) == 0
    name = capsys.readouterr().out.strip()
    _wait_until(lambda: bool(list(out.rglob("checkpoint-*.pt"))))
    assert cli.main(["jobs", "stop", name, *at]) == 0
    assert capsys.readouterr().out == f"{name} STOPPED\n"
    assert list(out.rglob("checkpoint-*.pt"))
    assert json.loads(next(out.rglob("result.json")).read_text())["status"] == "KILLED"
    assert cli.main(["jobs", "logs", name, "--follow", *at]) == 1
    assert "round 1/5000" in capsys.readouterr().out


def test_what_fails_there_fails_here(at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A Python without rayfl on the cluster: said in one line of the job's log, exit code 1."""
    empty = [sys.executable, "-m", "venv", "--without-pip", "bare"]
    subprocess.run(empty, check=True)
    python = str(Path("bare/bin/python").absolute())
    assert cli.main(["submit", *at, "--python", python, "--", "run", "fedavg.digits"]) == 1
    shown = capsys.readouterr()
    assert "rayfl: error: " in shown.out
    assert "has no rayfl" in shown.out
    assert "FAILED" in shown.err


def test_a_job_nobody_knows_is_a_mistake(at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["jobs", "logs", "raysubmit_none", *at]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "raysubmit_none" in line
