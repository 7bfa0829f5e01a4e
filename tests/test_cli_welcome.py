"""``rayfl`` and ``rayfl run`` alone: an explanation, and a first run for whoever is at a terminal."""

# ruff: noqa: F811 (a fixture that is imported)

import sys
from typing import Any

import pytest
from test_cli import SMALL, Call, call  # noqa: F401

import rayfl
from rayfl import welcome


class Terminal:
    """Somebody who types ``answer``; Ctrl-D where there is none."""

    def __init__(self, answer: str = "") -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.answer


def sit_down(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_rayfl_alone_welcomes(call: Call) -> None:
    outcome = call()
    assert (outcome.code, outcome.err) == (0, "")
    assert "rayfl run fedavg.digits" in outcome.out
    assert "rayfl new-method" in outcome.out


def test_run_alone_explains_itself(call: Call) -> None:
    """Without a terminal nobody is asked: the explanation, then the mistake in one line."""
    outcome = call("run")
    assert (outcome.code, outcome.out) == (2, "")
    *explanation, mistake = outcome.err.splitlines()
    assert mistake == "rayfl: error: SOURCE is missing: e.g. rayfl run fedavg.digits"
    assert len([line for line in explanation if line.startswith("  rayfl run ")]) == 3


@pytest.mark.parametrize("answer", ["\n", "y\n", "Yes\n"])
def test_the_demo_is_a_run_like_any_other(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
) -> None:
    """Interrupted, it says how it would go on: the words that were not typed included."""
    asked: list[Any] = []

    def interrupted(source: str, **_: Any) -> None:
        asked.append(source)
        raise KeyboardInterrupt

    monkeypatch.setattr(rayfl, "run", interrupted)
    sit_down(monkeypatch, answer)
    outcome = call("run")
    assert asked == ["fedavg.digits"]
    assert outcome.code == 130
    assert outcome.err.endswith("rayfl: interrupted: go on with rayfl run fedavg.digits --resume\n")


@pytest.mark.parametrize("answer", ["n\n", "no\n", "what?\n", ""])
def test_the_demo_can_be_declined(call: Call, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(rayfl, "run", lambda *_, **__: pytest.fail("nobody wanted this"))
    sit_down(monkeypatch, answer)
    assert call("run").code == 0


def test_what_is_named_exists(call: Call) -> None:
    """The commands that are printed to be copied are understood."""
    lines = [line.split("   ")[0].split() for line in (welcome.WELCOME + welcome.RUN).splitlines()]
    commands = [words[1:] for words in lines if words[:1] == ["rayfl"] and len(words) > 2]
    for name, *rest in commands:
        if name in ("run", "show") and not rest[0].endswith(".yaml"):
            assert call("show", *rest).code == 0
        elif name == "list":
            assert call(name, *rest).code == 0
