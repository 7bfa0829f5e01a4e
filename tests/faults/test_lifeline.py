"""What Ray can't do without is looked for before and while something is waited for."""

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rayfl.actors import lifeline
from rayfl.actors.lifeline import Lifeline
from rayfl.errors import RunFailed


@pytest.fixture
def ends() -> Iterator[dict[str, socket.socket]]:
    """Somebody who listens in place of the raylet and of the GCS."""
    found = {name: socket.create_server(("127.0.0.1", 0)) for name in ("raylet", "gcs")}
    yield found
    for end in found.values():
        end.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is set by hand."""
    hands = SimpleNamespace(now=time.monotonic())
    hands.monotonic = lambda: hands.now
    monkeypatch.setattr(lifeline, "time", hands)
    return hands


@pytest.fixture
def line(ends: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch) -> Lifeline:
    """To them both."""
    raylet, gcs = (ends[name].getsockname()[1] for name in ("raylet", "gcs"))
    context = SimpleNamespace(get_node_id=lambda: "here", gcs_address=f"127.0.0.1:{gcs}")
    node = {"NodeID": "here", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": raylet}
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "nodes", lambda: [{**node, "NodeID": "elsewhere", "NodeManagerPort": 1}, node])
    return Lifeline("go on")


def test_a_lost_raylet_ends_it_at_once(line: Lifeline, ends: dict[str, socket.socket]) -> None:
    line.check()
    ends["raylet"].close()
    with pytest.raises(RunFailed, match=r"^Ray broke down, its raylet on this machine is gone: go on$"):
        line.check()


def test_a_lost_gcs_has_time_to_come_back(
    line: Lifeline, ends: dict[str, socket.socket], clock: SimpleNamespace
) -> None:
    port = ends["gcs"].getsockname()[1]
    for _ in range(2):
        ends["gcs"].close()
        line.check()
        clock.now += 19
        line.check()
        ends["gcs"] = socket.create_server(("127.0.0.1", port))
        line.check()
        clock.now += 19
    ends["gcs"].close()
    line.check()
    clock.now += 21
    with pytest.raises(RunFailed, match=r"^Ray broke down, its GCS did not answer for 20 s: go on$"):
        line.check()


def test_it_is_looked_for_while_an_answer_is_late(
    line: Lifeline,
    ends: dict[str, socket.socket],
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def late(answers: list[Any], timeout: float) -> list[Any]:
        asked.append(answers)
        assert len(asked) < 4
        if len(asked) == 3:
            ends["raylet"].close()
        if len(asked) == 2:
            return [7]
        clock.now += timeout
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", late)
    assert line.get(["answer"]) == [7]
    with pytest.raises(RunFailed, match="raylet"):
        line.get(["another"])
    assert asked == [["answer"], ["answer"], ["another"]]


def test_sweeps_and_searches_look_between_steps(line: Lifeline, ends: dict[str, socket.socket]) -> None:
    from rayfl.tuning.quiet import Watch

    watch = Watch()
    watch.on_step_begin(0, [])
    ends["raylet"].close()
    with pytest.raises(RunFailed, match=r"raylet .* is gone: issue the same command again"):
        watch.on_step_begin(1, [])
