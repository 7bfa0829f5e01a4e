"""Checks that crash, hang or die cost one line each, and leave nothing behind."""

import os
import time
from pathlib import Path

import pytest

from rayfl.doctor import isolation
from rayfl.doctor.__main__ import findings
from rayfl.doctor.finding import Request
from rayfl.doctor.isolation import STAGES, Stage, examine

BAD = {
    "raises": "raise ZeroDivisionError('a\\nb')",
    "refuses": "from rayfl.errors import UserError; raise UserError('no: do this')",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "prints": "print('noise'); import subprocess; subprocess.run(['echo', 'more noise'])",
    "hangs": """import subprocess, time
    with open(request.out, "w") as file:
        file.write(str(subprocess.Popen(["sleep", "60"]).pid))
    time.sleep(60)""",
}
"""Each says first that all is well."""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """All bad checks, as modules beside those of the package; only one of them needs its whole time."""
    package = tmp_path / "extra"
    package.mkdir()
    for name, body in BAD.items():
        lines = ["def check(request):", "from rayfl.doctor.finding import ok", "yield ok('fine')", body]
        text = "\n    ".join(lines)
        (package / f"{name}.py").write_text(text)
    hook = f"import rayfl.doctor; rayfl.doctor.__path__.append({str(package)!r})"
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return [Stage(tuple(BAD)[:-1], limit_s=60), Stage(("hangs",), limit_s=5)]


@pytest.mark.slow
def test_bad_checks_cost_a_line_each(stages: list[Stage], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    said: list[str] = []
    found = list(examine(said.append, stages=stages, out=str(pid_file)))
    assert said == ["raises refuses dies prints: at most 60 s", "hangs: at most 5 s"]
    by_check = {name: [one for one in found if one.check == name] for name in BAD}
    assert all(ones[0].text == "fine" for ones in by_check.values())
    problems = {name: [one.text.split(" (load")[0] for one in ones[1:]] for name, ones in by_check.items()}
    assert problems == {
        "raises": ["ZeroDivisionError: a b"],
        "refuses": ["no: do this"],
        "dies": ["the check was ended by SIGSEGV: no further details"],
        "prints": [],
        "hangs": ["no answer within 5 s"],
    }
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}/exe"), "what a killed check started lives on"


def test_an_unknown_check_is_a_finding() -> None:
    (found,) = findings("nonsense", Request(out="/", scratch="/"))
    assert (found.level, found.check) == ("problem", "nonsense")
    assert "ModuleNotFoundError" in found.text


def test_the_whole_report_takes_less_than_a_minute() -> None:
    assert sum(stage.limit_s for stage in STAGES) < 60


def test_every_check_of_the_report_exists() -> None:
    here = Path(isolation.__file__).parent
    assert all((here / f"{name}.py").exists() for stage in STAGES for name in stage.checks)
