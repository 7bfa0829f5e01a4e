"""Ctrl-C and SIGTERM: the first ends with the round and keeps it, the second at once; both can go on."""

# ruff: noqa: F811 (a fixture that is imported)

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import SMALL, Call, call  # noqa: F401

import rayfl
from rayfl.algorithms.fedavg import FedAvg
from rayfl.errors import UserError

ARGUMENTS = [*SMALL, "rounds=5", "algorithm.name=test_interrupt:Interrupted", "--json"]
SEND = "RAYFL_TEST_SIGNALS"


class Interrupted(FedAvg):
    """FedAvg to whose process signals are sent in the middle of round 3."""

    def round(self, t: int) -> None:
        clients = self.sample(t)
        updates = clients.pooled.train(self.fed.weights(), t)
        if t == 3:
            for name in os.environ.pop(SEND, "").split():
                os.kill(os.getpid(), signal.Signals[name])
        self.fed.aggregate(updates)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run that nobody interrupts."""
    return rayfl.run(
        SMALL[0], overrides=[*SMALL[1:], "rounds=5"], out=tmp_path_factory.mktemp("out")
    ).weights_sha256


def cell() -> Path:
    """The only cell in the output folder."""
    (folder,) = Path("rayfl-results/cells").iterdir()
    return folder


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_the_first_ends_with_the_round(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: str,
    sent: str,
) -> None:
    """Round 3 is kept, though checkpoints are due every 5; ``--resume`` ends on the same bits."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setenv(SEND, sent)
    outcome = call("run", *ARGUMENTS)
    assert (outcome.code, outcome.out) == (130, "")
    said = [line for line in outcome.err.splitlines() if line.startswith("rayfl: ")]
    assert said[0] == "rayfl: finishing round 3, press Ctrl-C again to stop at once"
    assert said[1].startswith(
        "rayfl: interrupted after round 3: go on with rayfl run fedavg.digits rounds=2 "
    )
    assert said[1].endswith(" --json --resume")
    assert [path.name for path in cell().glob("*.pt")] == ["checkpoint-000003.pt"]
    assert json.loads((cell() / "result.json").read_text())["status"] == "KILLED"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    again = call("run", *ARGUMENTS, "--resume")
    assert again.code == 0
    assert again.err.splitlines()[0] == "going on after round 3"
    assert again.json["weights_sha256"] == undisturbed


def test_the_second_ends_at_once(call: Call, monkeypatch: pytest.MonkeyPatch, undisturbed: str) -> None:
    """Nothing of round 3 is kept; going on, from the start here, ends on the same bits."""
    monkeypatch.setenv(SEND, "SIGINT SIGINT")
    outcome = call("run", *ARGUMENTS)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1].startswith("rayfl: interrupted: go on with rayfl run ")
    assert not list(cell().glob("*.pt"))
    assert json.loads((cell() / "result.json").read_text())["rounds"] == 2
    assert call("run", *ARGUMENTS, "--resume").json["weights_sha256"] == undisturbed


def test_in_the_last_round_nothing_is_lost(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEND, "SIGINT")
    outcome = call("run", *ARGUMENTS, "rounds=3", "--quiet")
    assert (outcome.code, outcome.json["status"]) == (0, "FINISHED")
    assert outcome.err == "rayfl: finishing round 3, press Ctrl-C again to stop at once\n"


def test_from_python_ctrl_c_means_what_it_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SEND, "SIGINT")
    settings = [word for word in ARGUMENTS[1:] if "=" in word]
    with pytest.raises(KeyboardInterrupt):
        rayfl.run(ARGUMENTS[0], overrides=settings, out=tmp_path)
    (stored,) = tmp_path.glob("cells/*/result.json")
    assert json.loads(stored.read_text())["rounds"] == 2


def test_before_the_rounds_there_is_nothing_to_finish(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise UserError("not reached")

    monkeypatch.setattr(rayfl, "run", lambda *_, **__: slow())
    outcome = call("run", *SMALL)
    assert outcome.code == 130
    assert outcome.err.startswith("rayfl: interrupted: go on with ")


@pytest.mark.slow
def test_a_real_process(tmp_path: Path) -> None:
    """Interrupted like by a terminal: the whole process group gets the signal."""
    command = [sys.executable, "-m", "rayfl", "run", *SMALL, "rounds=100000", "eval_every=50"]
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "RAYFL_DATA": str(tmp_path / "data")},
    )  # fmt: skip
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("round 50/"):
                break
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=300)
    finally:
        running.kill()
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("rayfl: interrupted after round ")
    done = int(err.splitlines()[-1].split()[4].rstrip(":"))
    (checkpoint,) = list(tmp_path.glob(f"rayfl-results/cells/*/checkpoint-{done:06d}.pt"))
    assert checkpoint.stat().st_size
