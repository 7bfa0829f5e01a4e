"""What is shown while something is under way, on a terminal and elsewhere."""

# ruff: noqa: F811 (a fixture that is imported)

import io
import sys

import pytest
from test_cli import SMALL, Call, call  # noqa: F401

from rayfl import waiting
from rayfl.progress import SweepProgress
from rayfl.text import counted, in_time, lasted


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> Screen:
    """Be at a terminal 100 columns wide."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_run_on_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is said first and gone before the rounds; the last picture has all that is worth knowing."""
    screen = at_a_terminal(monkeypatch)
    assert call("run", *SMALL).code == 0
    shown = screen.getvalue()
    assert shown.startswith("loading ...\r")
    assert shown.index("\x1b[K") < shown.index("round")
    last = shown[shown.rindex("round 2/2") :]
    for part in ("accuracy 0.", " MB  ", " s/round"):
        assert part in last
    assert "left" not in last


def test_quiet_shows_nothing_that_stays(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    assert call("run", *SMALL, "--quiet").code == 0
    assert set(screen.getvalue().replace("loading ...\r", "").split("\x1b[K")) == {""}


def test_off_a_terminal_nothing_is_said_of_loading(call: Call) -> None:
    outcome = call("show", "fedavg.digits")
    assert outcome.err == ""


def test_a_dumb_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch, "dumb")
    with waiting.loading():
        pass
    assert screen.getvalue() == ""


def test_what_is_loading_is_gone_after_a_mistake(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    assert call("run", "nosuch").code == 2
    assert screen.getvalue().startswith("loading ...\r\x1b[Krayfl: error: ")


def rows(seconds: float, count: int) -> list[dict[str, float]]:
    return [{"round": float(t), "wall/round_s": seconds, "wall/eval_s": seconds / 2} for t in range(count)]


def test_quick_cells_tell_how_long_they_took(capsys: pytest.CaptureFixture[str]) -> None:
    """All rows of a quick cell come at once, with its end: the time is that of its rounds, to two digits."""
    progress = SweepProgress(live=False)
    progress.begin(3)
    for row in rows(0.1, 3):
        progress.row("quick", 2, row)
    progress.end("quick", "FINISHED", {"final/last10_accuracy": 0.5})
    progress.end("busy", "BUSY", {})
    progress.end("other", "FAILED", {})
    quick, busy, other = capsys.readouterr().err.splitlines()
    assert quick.startswith("[1/3] quick: FINISHED, accuracy 50.00 %, 0.45 s in rounds, ")
    assert busy.startswith("[2/3] busy: BUSY, ")
    assert other == "[3/3] other: FAILED"


def test_a_running_cells_time_left() -> None:
    """Two of four rounds took 9 s, the evaluation before them included; so will the others."""
    progress = SweepProgress(live=False)
    for row in rows(2.0, 3):
        progress.row("cell", 4, row)
    assert progress._running["cell"].left() == "9 s left"


@pytest.mark.parametrize(
    ("seconds", "guessed", "measured"),
    [
        (0.0, "<1 s", "0 s"),
        (0.034, "<1 s", "0.034 s"),
        (1.26, "1 s", "1.3 s"),
        (9.97, "10 s", "10 s"),
        (61, "61 s", "61 s"),
        (3725, "62 min", "62 min"),
        (7325, "2 h 02 min", "2 h 02 min"),
    ],
)
def test_durations(seconds: float, guessed: str, measured: str) -> None:
    assert (in_time(seconds), lasted(seconds)) == (guessed, measured)


def test_one_is_singular() -> None:
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
