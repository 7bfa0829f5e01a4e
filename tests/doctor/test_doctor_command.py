"""The command: its lines, JSON and exit codes; and all checks, really run."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rayfl import cli
from rayfl.doctor import isolation
from rayfl.doctor.finding import Finding, ok, problem, warning


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the checks find; made up by the test."""
    findings = [Finding(level="ok", text="fine", check="ray_folder")]

    def examine(*args: Any, **about: Any) -> Iterator[Finding]:
        asked.update(about, patience=args[1])
        yield from findings

    asked.clear()
    monkeypatch.setattr(isolation, "examine", examine)
    return findings


asked: dict[str, Any] = {}


def test_a_line_per_finding_and_exit_code_0(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    found.append(warning("hm", "do this"))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       ray folder     fine",
        "warning                 hm; fix: do this",
        "problems: 0, warnings: 1",
    ]


def test_a_problem_is_exit_code_1(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    found.append(problem("no"))
    assert cli.main(["doctor"]) == 1
    assert "problem                 no\n" in capsys.readouterr().out


def test_json(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    found += [problem("no"), ok("yes")]
    assert cli.main(["doctor", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert (report["problems"], report["warnings"]) == (1, 0)
    assert report["findings"][0] == {"level": "ok", "text": "fine", "remedy": "", "check": "ray_folder"}


def test_what_is_asked_for(found: list[Finding], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["doctor", "--root", "data", "--address", "10.0.0.1:6379", "--patience", "3"])
    expected = {"out": f"{tmp_path}/rayfl-results", "root": "data", "address": "10.0.0.1:6379", "patience": 3}
    assert asked == expected


@pytest.mark.slow
@pytest.mark.ray
def test_all_checks_on_this_machine(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray really starts, and two clients train to the same bits in this process and in actors."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    cli.main(["doctor", "--json", "--patience", "5", "--root", str(tmp_path / "data")])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    checks = {finding["check"] for finding in report["findings"]}
    assert checks == {name for stage in isolation.STAGES for name in stage.checks}
    assert [f["text"] for f in report["findings"] if f["level"] == "problem"] == []
    smoke = [f["text"] for f in report["findings"] if f["check"] == "smoke_run"]
    assert smoke[-1].endswith("the same weights to the last bit")
    assert list(tmp_path.iterdir()) == []
