"""A client that never answers: the run stops and names it, or goes on without it, or tries again."""

import ctypes
import signal
import threading
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small
from torch import Tensor

from rayfl import deadline
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.splitfed_v1 import SplitFedV1
from rayfl.config import ExperimentConfig
from rayfl.errors import RunFailed, UserError
from rayfl.experiment import Experiment
from rayfl.fleet import Fleet, SealedFleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Batch, Blueprint, Host
from rayfl.layout import plan_layout
from rayfl.messages import SmashedBatch
from rayfl.roles import Client, SplitClient

if TYPE_CHECKING:
    from rayfl.actors.fleet import ActorPool

LIMIT_S = 2.0
FOREVER_S = 600.0


def hangs_now(client: Client, config: "Hanging.Config | HangingSplit.Config", t: int) -> bool:
    """In round 3, client 1; with a mark, only the first time."""
    if (client.id, t) != (1, 3):
        return False
    mark = Path(config.mark) if config.mark else None
    first = mark is None or not mark.exists()
    if mark is not None:
        mark.touch()
    return first


def lock_twice() -> None:
    """A deadlock in C, with the interpreter's lock held: no signal handler of Python's ever runs."""
    lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    lock(mutex)


class Hanging(FedAvg):
    """A client of FedAvg that hangs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(FedAvg.Config):
        name: str = "test_hanging_client:Hanging"
        mark: str = ""
        deep: bool = False
        """Whether it hangs in foreign code, which nothing can interrupt."""

    class Client(FedAvg.Client):
        """Hangs in its loss, and swallows exceptions as careless code does."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            if self.config.deep:
                deadline.GRACE_S = 0.5

        def receive(self, *arguments: Any) -> None:
            self.t = arguments[1]
            super().receive(*arguments)

        def loss(self, batch: Batch) -> Tensor:
            if hangs_now(self, self.config, self.t):
                if self.config.deep:
                    lock_twice()
                try:
                    time.sleep(FOREVER_S)
                except deadline.TookTooLong:
                    time.sleep(FOREVER_S)
            return super().loss(batch)


class HangingSplit(SplitFedV1):
    """A split client that hangs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitFedV1.Config):
        name: str = "test_hanging_client:HangingSplit"
        mark: str = ""

    class Client(SplitClient):
        """Hangs, or raises, in its first step."""

        def receive(self, *arguments: Any) -> None:
            self.t = arguments[1]
            super().receive(*arguments)

        def forward(self) -> SmashedBatch:
            if hangs_now(self, self.config, self.t):
                threading.Event().wait()
            return super().forward()


class FailingSplit(HangingSplit):
    """Raises where the other one hangs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HangingSplit.Config):
        name: str = "test_hanging_client:FailingSplit"

    class Client(HangingSplit.Client):
        """Raises."""

        def forward(self) -> SmashedBatch:
            if (self.id, self.t) == (1, 3):
                raise ValueError("broken")
            return SplitClient.forward(self)


def config(method: Any, on_client_timeout: str, **more: Any) -> ExperimentConfig:
    asked = {"client_timeout_s": LIMIT_S, "on_client_error": "skip", **more.pop("fleet", {})}
    fleet = FleetConfig(on_client_timeout=on_client_timeout, **asked)  # type: ignore[arg-type]
    plain = small.config(method, fleet, checkpoint_every=1000)
    return replace(plain, algorithm=replace(plain.algorithm, **more))


def sealed(config: ExperimentConfig, plan: Blueprint) -> Fleet:
    return SealedFleet(plan, plan_layout(plan, small.APART), config.fleet)


@pytest.mark.slow
def test_raise_names_client_and_round_and_shows_where() -> None:
    """Though the client swallows the first exception; the alarm of others is left as it was."""
    before = signal.getsignal(signal.SIGALRM)
    running = Experiment(config(Hanging, "raise"))
    with pytest.raises(
        RunFailed, match=r"no answer within 2 s in client 1, round 3, Client\.train"
    ) as caught:
        running.run()
    assert "time.sleep(FOREVER_S)" in "".join(traceback.format_exception(caught.value))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
def test_skip_leaves_it_out_as_if_it_had_failed(tmp_path: Path) -> None:
    """The same bits, counted, and on disk at once: nobody knows whether it would hang again."""
    running = Experiment(config(HangingSplit, "skip"), sealed)
    rows = list(running.rounds(tmp_path))
    failed = Experiment(config(FailingSplit, "raise"), sealed).run()
    assert [row.get("client/num_failed") for row in rows] == [None, None, None, 1.0, None]
    assert running.result().weights_sha256 == failed.weights_sha256
    assert [path.name for path in tmp_path.glob("*.pt")] == ["checkpoint-000003.pt"]


@pytest.mark.slow
def test_retry_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    """The second time it does not hang, and nothing tells that it ever did."""
    found = Experiment(config(Hanging, "retry", mark=str(tmp_path / "hung"))).run()
    assert (tmp_path / "hung").exists()
    assert found.weights_sha256 == Experiment(small.config("fedavg")).run().weights_sha256


@pytest.mark.slow
def test_retry_ends_when_it_hangs_every_time() -> None:
    with pytest.raises(RunFailed, match="client 1, round 3"):
        Experiment(config(Hanging, "retry", fleet={"relaunches": 0})).run()


def test_elsewhere_than_in_the_main_thread_it_is_refused() -> None:
    caught: list[BaseException] = []

    def build() -> None:
        try:
            Experiment(config(Hanging, "raise"))
        except UserError as error:
            caught.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    assert "fleet.client_timeout_s=2 can only interrupt a main thread" in str(caught[0])


def on_ray(actors: "ActorPool", settings: ExperimentConfig) -> Experiment:
    from rayfl.actors.fleet import RayFleet

    return Experiment(settings, lambda config, plan: RayFleet(plan, config.fleet, actors))


RAY = {"kind": "ray", "client_actors": 2, "cpus_per_actor": 0, "client_timeout_s": 5.0}


@pytest.mark.ray
def test_on_ray_it_is_named_too(actors: "ActorPool") -> None:
    running = on_ray(actors, config(Hanging, "raise", fleet=RAY))
    with pytest.raises(RunFailed, match=r"no answer within 5 s in client 1, round 3, Client\.train"):
        running.run()
    running.close()


@pytest.mark.ray
def test_what_hangs_in_foreign_code_loses_its_process_and_no_bit(actors: "ActorPool", tmp_path: Path) -> None:
    """No exception reaches a client that holds the interpreter's lock; its process ends soon after."""
    running = on_ray(actors, config(Hanging, "retry", mark=str(tmp_path / "hung"), deep=True, fleet=RAY))
    before = running.fleet.pids  # type: ignore[attr-defined]
    found = running.run()
    after = running.fleet.pids  # type: ignore[attr-defined]
    running.close()
    assert (tmp_path / "hung").exists()
    assert before[0] not in after
    assert found.weights_sha256 == Experiment(small.config("fedavg")).run().weights_sha256
