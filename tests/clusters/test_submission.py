"""From a request to a job, with the cluster left out."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl import __version__, cli
from rayfl.clusters import submission
from rayfl.clusters.head import Head
from rayfl.clusters.jobs import Job
from rayfl.clusters.parcel import CHECK
from rayfl.clusters.request import read_request
from rayfl.commands import jobs as command
from rayfl.errors import UserError


class FakeJobs:
    """Takes every job and ends it as it is told."""

    def __init__(self, ending: str = "SUCCEEDED") -> None:
        self.head = Head("http://head:8265", "2.60.0", {"Authorization": "Bearer s3cret"})
        self.ending = ending
        self.sent: list[tuple[str, Mapping[str, bytes], Mapping[str, str]]] = []

    def submit(self, entrypoint: str, parcel: Any, environment: Any, **about: str) -> Job:
        self.sent.append((entrypoint, parcel, environment))
        self.job = Job("raysubmit_1", "PENDING", started_s=None, ended_s=None, **about)
        return self.job

    def find(self, name: str) -> Job:
        return self.job

    def follow(self, name: str, show: Callable[[str], None]) -> Job:
        show("round 1/1\n")
        if self.ending == "Ctrl-C":
            raise KeyboardInterrupt
        return Job(**{**vars(self.job), "status": self.ending})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, project: Path) -> FakeJobs:
    """The cluster that every command finds."""
    jobs = FakeJobs()

    def connect(args: argparse.Namespace) -> FakeJobs:
        return jobs

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr("rayfl.commands.submit.connect", connect)
    return jobs


def test_what_the_heads_shell_reads_is_what_was_asked_for(tmp_path: Path) -> None:
    """Every argument arrives whole, whatever is in it, and only after the check has passed."""
    asked = read_request(["run", "fedavg.digits", "data.partition={kind: iid}", "note=$(id); 'x' && y"])
    python = tmp_path / "a python"
    python.write_text('#!/bin/sh\nprintf "<%s>" "$@"\necho\n[ "$2" != bad ]\n')
    python.chmod(0o755)

    def run(version: str) -> str:
        line = submission.entrypoint(asked, str(python), version)
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        return done.stdout

    rest = "".join(f"<{text}>" for text in ("-m", "rayfl", *asked.arguments))
    assert run("1.0") == f"<{CHECK}><1.0>\n{rest}\n"
    assert run("bad") == f"<{CHECK}><bad>\n"


def test_the_environment_takes_no_secrets() -> None:
    assert submission.environment(["RAYFL_DATA=/shared/a=b", "EMPTY="]) == {
        "RAYFL_DATA": "/shared/a=b",
        "EMPTY": "",
    }
    for text in ("novalue", "1A=x", "=x"):
        with pytest.raises(UserError, match="NAME=VALUE"):
            submission.environment([text])
    for text in ("MLFLOW_TRACKING_PASSWORD=hush", "RAY_AUTH_TOKEN=hush", "AWS_SECRET_ACCESS_KEY=hush",
                 "MLFLOW_TRACKING_URI=https://me:hush@host", "API_KEY=hush"):  # fmt: skip
        with pytest.raises(UserError, match="looks like a secret") as caught:
            submission.environment([text])
        assert "hush" not in str(caught.value)
    assert submission.environment(["MLFLOW_TRACKING_URI=http://host:5000", "MONKEY=1"])


@pytest.mark.parametrize(("ending", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 1)])
def test_a_job_is_followed_and_its_end_is_the_exit_code(
    fake: FakeJobs, capsys: pytest.CaptureFixture[str], ending: str, code: int
) -> None:
    fake.ending = ending
    arguments = [
        "submit",
        "--env",
        "RAYFL_DATA=/d",
        "--with-file",
        "extra.yaml",
        "--",
        "sweep",
        "grids/grid.yaml",
    ]
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    assert out == "round 1/1\n"
    assert "sending grids/grid.yaml, base.yaml, extra.yaml, " in err
    assert f"raysubmit_1 {ending}" in err
    assert "rayfl jobs fetch raysubmit_1" in err
    assert "s3cret" not in out + err
    ((line, parcel, environment),) = fake.sent
    assert line.endswith("python -m rayfl sweep grids/grid.yaml --out '~/rayfl-results'")
    assert shlex.split(line)[:3] == ["python", CHECK, __version__]
    assert sorted(parcel) == ["base.yaml", "extra.yaml", "grids/grid.yaml", CHECK]
    assert environment == {"RAYFL_DATA": "/d"}


def test_a_method_of_ones_own_goes_along(fake: FakeJobs) -> None:
    assert cli.main(["submit", "--no-wait", "run", "fedavg.digits", "algorithm.name=my_method:Mine"]) == 0
    assert sorted(fake.sent[0][1]) == ["my_helper.py", "my_method.py", CHECK]
    for name in ("my_method", "my_helper"):
        del sys.modules[name]


def test_no_wait_prints_the_id_alone(fake: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "--no-wait", "--", "run", "fedavg.digits"]) == 0
    assert capsys.readouterr().out == "raysubmit_1\n"
    assert cli.main(["submit", "--no-wait", "--json", "--", "run", "fedavg.digits"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["id"], said["status"]) == ("raysubmit_1", "PENDING")


def test_json_stands_alone_on_stdout(fake: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "--json", "--", "run", "fedavg.digits"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "round 1/1\n" in err


def test_ctrl_c_leaves_the_job_alone_and_says_so(fake: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    fake.ending = "Ctrl-C"
    assert cli.main(["submit", "--address", "http://h:1", "--", "run", "fedavg.digits"]) == 130
    err = capsys.readouterr().err
    assert "rayfl jobs logs raysubmit_1 --follow --address http://h:1" in err
    assert "rayfl jobs stop raysubmit_1 --address http://h:1" in err


def test_a_file_that_the_cluster_must_have_is_named(
    fake: FakeJobs, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "w.pt").touch()
    weights = f"model.weights={project / 'w.pt'}"
    assert cli.main(["submit", "--no-wait", "--", "run", "fedavg.digits", weights]) == 0
    assert f"rayfl: {weights} is not sent: the cluster must have it there\n" in capsys.readouterr().err
    assert sorted(fake.sent[0][1]) == [CHECK]


def test_a_search_is_sent_with_the_files_that_it_reads(
    fake: FakeJobs, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "w.pt").write_bytes(b"w")
    Path("s.yaml").write_text("preset: base.yaml\nsearch: {model.weights: {choice: [null, w.pt]}}\n")
    assert cli.main(["submit", "--no-wait", "--", "tune", "s.yaml"]) == 2
    assert "model.weights=w.pt stays behind: send it by --with-file w.pt" in capsys.readouterr().err
    assert fake.sent == []
    assert cli.main(["submit", "--no-wait", "--with-file", "w.pt", "--", "tune", "s.yaml"]) == 0
    assert sorted(fake.sent[0][1]) == ["base.yaml", CHECK, "s.yaml", "w.pt"]


@pytest.mark.parametrize("arguments", [["run", "fedavg.digits", "lr=1"], ["sweep", "fedavg.digits"]])
def test_a_wrong_request_is_one_line_and_nothing_is_sent(
    fake: FakeJobs, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.main(["submit", "--", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rayfl: error: ")
    assert fake.sent == []


def test_unchecked_requests_are_sent_as_they_are(fake: FakeJobs) -> None:
    assert (
        cli.main(["submit", "--no-check", "--no-wait", "--", "run", "fedavg.digits", "model.weights=/s/w.pt"])
        == 0
    )
    assert sorted(fake.sent[0][1]) == [CHECK]
