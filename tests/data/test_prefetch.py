"""Batches made in threads: the same, in order, bounded, with their errors, and no thread left behind."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tiny
import torch
from photos import federation

from rayfl.data.prefetch import Prefetcher
from rayfl.errors import UserError
from rayfl.fleet import LocalFleet
from rayfl.fleet_config import FleetConfig


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rayfl-prefetch"]


def join_all() -> None:
    for thread in workers():
        thread.join(timeout=10)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """After each test every thread has ended, without anybody asking it to."""
    yield
    join_all()
    assert not workers()


class Gate:
    """Makers that note where and when they run, and that a test can hold up."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.made: list[int] = []
        self.places: list[str] = []

    def __call__(self, number: int) -> int:
        assert self.open.wait(10)
        self.places.append(threading.current_thread().name)
        self.made.append(number)
        return number

    def makers(self, count: int, first: int = 0) -> Iterator[Any]:
        return (lambda i=i: self(i) for i in range(first, first + count))


def settle(gate: Gate, count: int) -> None:
    """Wait until so many are made, and long enough to see that no further one is."""
    deadline = time.monotonic() + 10
    while len(gate.made) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    join_all()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_stream_gives_all_in_order(threads: int) -> None:
    gate = Gate()
    gate.open.set()
    assert list(Prefetcher(threads).stream(gate.makers(30))) == list(range(30))
    assert sorted(gate.made) == list(range(30))


def test_without_threads_everything_happens_in_the_caller_when_it_is_due() -> None:
    gate = Gate()
    gate.open.set()
    stream = Prefetcher(0).stream(gate.makers(3))
    assert gate.made == []
    assert next(stream) == 0
    assert (gate.made, gate.places) == ([0], [threading.current_thread().name])


def test_with_threads_the_next_batches_are_made_while_one_is_in_use() -> None:
    gate = Gate()
    gate.open.set()
    stream = Prefetcher(1).stream(gate.makers(9))
    settle(gate, 1)
    assert next(stream) == 0
    settle(gate, 3)
    assert gate.made == [0, 1, 2], "two ahead of the one in use, made by nobody's asking"
    assert set(gate.places) == {"rayfl-prefetch"}
    stream.close()


def test_streams_share_their_threads_and_take_turns() -> None:
    """Twelve clients in lockstep, one thread: first all first batches as far as there is room, which is 8;
    each one taken makes room for one more, in the order in which clients will ask."""
    gate, prefetcher = Gate(), Prefetcher(1)
    streams = [prefetcher.stream(gate.makers(2, first=10 * i)) for i in range(12)]
    assert len(workers()) == 1
    gate.open.set()
    settle(gate, 8)
    assert gate.made == [10 * i for i in range(8)]
    for i, stream in enumerate(streams):
        assert next(stream) == 10 * i
        settle(gate, 9 + i)
        assert len(gate.made) == 9 + i
    assert [next(stream) for stream in streams] == [10 * i + 1 for i in range(12)]
    assert gate.made == [10 * i for i in range(12)] + [10 * i + 1 for i in range(12)]
    for stream in streams:
        stream.close()


def test_a_batch_that_no_thread_has_begun_is_made_by_the_one_who_needs_it() -> None:
    """Nobody waits behind others' batches: the second stream is served though the thread is held up."""
    gate, ready = Gate(), Gate()
    ready.open.set()
    prefetcher = Prefetcher(1)
    slow, quick = prefetcher.stream(gate.makers(1)), prefetcher.stream(ready.makers(1))
    assert next(quick) == 0
    assert ready.places == [threading.current_thread().name]
    gate.open.set()
    assert next(slow) == 0


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_with_its_own_batch_and_ends_the_stream(threads: int) -> None:
    def fail() -> int:
        raise UserError("photo.jpg can't be decoded")

    stream = Prefetcher(threads).stream([lambda: 1, lambda: 2, fail, lambda: 4])
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(UserError, match=r"photo\.jpg"):
        next(stream)
    assert list(stream) == []


def test_closing_drops_what_waits_and_gives_back_the_room() -> None:
    """The thread at work is waited for; streams opened later have all the room again."""
    gate, prefetcher = Gate(), Prefetcher(2)
    streams = [prefetcher.stream(gate.makers(4, first=10 * i)) for i in range(10)]
    threading.Timer(0.05, gate.open.set).start()
    streams[0].close()
    assert 0 in gate.made
    for stream in streams:
        stream.close()
        stream.close()
        assert list(stream) == []
    join_all()
    assert prefetcher.num_streams == 0
    gate.made.clear()
    streams = [prefetcher.stream(gate.makers(4, first=10 * i)) for i in range(10)]
    settle(gate, 8)
    assert sorted(gate.made) == [10 * i for i in range(8)]
    for stream in streams:
        stream.close()


def test_threads_compute_with_the_callers_thread_count() -> None:
    """Sums over many numbers depend on it, and bits must not depend on where a batch is made."""
    mine = torch.get_num_threads()
    stream = Prefetcher(1).stream([torch.get_num_threads])
    join_all()
    assert list(stream) == [mine]


@pytest.mark.parametrize("method", ["fedavg", "splitfed_v1"])
def test_a_run_has_the_same_bits_with_and_without_threads(method: str) -> None:
    plain = tiny.run(federation(method, augment="crop_flip"))
    for threads in (1, 3):
        found = tiny.run(federation(method, augment="crop_flip", prefetch=threads))
        assert tiny.identical(found, plain)
    assert not tiny.identical(tiny.run(federation(method)), plain)


@pytest.mark.parametrize("method", ["fedavg", "splitfed_v1"])
def test_an_unreadable_image_ends_the_round_of_its_client_with_its_name(method: str) -> None:
    """Row 12 is client 2's. Clients that fail may be left out; the others' threads go on, then end."""
    plan = federation(method, broken=12, prefetch=2)
    with pytest.raises(UserError, match=r"12\.jpg") as caught:
        tiny.run(plan)
    assert "client 2, round 1" in caught.value.__notes__[0]
    join_all()
    assert not workers()
    fleet = LocalFleet(plan, FleetConfig(on_client_error="skip"))
    run = tiny.Federation(plan, fleet).run(1)
    assert list(fleet.failed_clients) == [2]
    assert run.party("client").host.prefetcher.num_streams == 0


def test_a_broken_off_round_leaves_the_next_one_its_room() -> None:
    """Rounds that are opened and never closed, as after a failure elsewhere."""
    plan = federation("splitfed_v1", prefetch=1)
    run = tiny.Federation(plan)
    for _ in range(5):
        run.algorithm.clients.receive(run.algorithm.fed.weights(), 1)
    run.fleet.settle()
    prefetcher = run.party("client").host.prefetcher
    assert prefetcher.num_streams == len(tiny.SIZES)
    run.algorithm.clients.only([1]).abandon()
    assert prefetcher.num_streams == len(tiny.SIZES) - 1
    run.run(2)
    assert prefetcher.num_streams == 0
    assert tiny.identical(run.weights(), tiny.run(federation("splitfed_v1")))
