"""A client's exception: who, when, where, and what becomes of the round."""

import traceback
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from test_fleets import experiment, folder  # noqa: F401
from tiny import difference
from torch import Tensor

from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.base import Algorithm
from rayfl.errors import RunFailed
from rayfl.fleet import LocalFleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Batch
from rayfl.messages import Activations, Gradient, SmashedBatch

EIGHT = (4, 5, 6, 7, 4, 5, 6, 12)
SKIP = FleetConfig(on_client_error="skip")


def deep_down(client: int) -> None:
    raise ZeroDivisionError(f"bad sample at client {client}")


def failing(method: type[Algorithm], who: set[int], after: int = 0) -> type[Algorithm]:
    """The method with clients that fail in round 2, after some steps."""

    class Fails(method.Client):  # type: ignore[misc, name-defined]
        def receive(self, *arguments: Any) -> None:
            self.t, self.made = arguments[1], 0
            super().receive(*arguments)

        def fail_when_due(self) -> None:
            if self.id in who and self.t == 2 and self.made >= after:
                deep_down(self.id)
            self.made += 1

        def loss(self, batch: Batch) -> Tensor:
            self.fail_when_due()
            loss: Tensor = super().loss(batch)
            return loss

        def forward(self) -> SmashedBatch:
            self.fail_when_due()
            smashed: SmashedBatch = super().forward()
            return smashed

        def lose(self, deeper: Activations) -> Gradient:
            self.fail_when_due()
            gradient: Gradient = super().lose(deeper)
            return gradient

    class Failing(method):  # type: ignore[misc, valid-type]
        Client = Fails

    return Failing


@pytest.mark.parametrize(("method", "call"), [("fedavg", "Fails.train"), ("splitfed_v1", "Fails.forward")])
def test_the_error_says_who_when_and_where(method: str, call: str) -> None:
    """Client, round and method in a note, the original type, message and innermost line in the traceback."""
    federation = tiny.Federation(tiny.blueprint(failing(ALGORITHMS[method], {7}), EIGHT))
    federation.run(1)
    with pytest.raises(ZeroDivisionError, match="bad sample at client 7") as caught:
        federation.run(1)
    text = "".join(traceback.format_exception(caught.value))
    assert f"in client 7, round 2, {call}" in text
    assert "in deep_down" in text


@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_skipping_goes_on(method: str, after: int) -> None:
    """With ``skip`` the round loses that client alone, is finite, and the client is back in the next one."""
    plan = tiny.blueprint(failing(ALGORITHMS[method], {7}, after), EIGHT, "batch", num_edges=2, local_steps=2)
    federation = tiny.Federation(plan, LocalFleet(plan, SKIP))
    federation.run(1)
    assert federation.fleet.failed_clients == {}
    federation.run(1)
    assert list(federation.fleet.failed_clients) == [7]
    assert "ZeroDivisionError: bad sample at client 7" in federation.fleet.failed_clients[7]
    federation.run(1)
    assert federation.fleet.failed_clients == {}
    assert difference(federation.weights(), federation.weights()) == 0.0


def test_shares_are_those_of_the_others() -> None:
    """FedAvg without the failing client in round 2: its round is the mean of the other seven."""
    plan = tiny.blueprint(failing(ALGORITHMS["fedavg"], {7}), EIGHT)
    federation = tiny.Federation(plan, LocalFleet(plan, SKIP)).run(1)
    start, states = federation.weights(), []
    for client in range(7):
        network = tiny.initial(plan)
        network.load_state_dict(start)
        tiny.fit(network, tiny.optimizer_for(plan, network), tiny.client_batches(plan, 2, client))
        states.append(tiny.state_of(network))
    assert difference(federation.run(1).weights(), tiny.average(states, EIGHT[:7])) < 1e-12


class FullClient(ALGORITHMS["fedavg"].Client):  # type: ignore[misc, name-defined]
    """Finds no room on its GPU."""

    def loss(self, batch: Batch) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Full(ALGORITHMS["fedavg"]):  # type: ignore[misc, valid-type]
    Client = FullClient


@pytest.mark.parametrize(
    ("share", "remedy"),
    [(0.05, "set fleet.gpus_per_actor=0.1, for"), (0.6, "fleet.gpus_per_actor=1, for"), (1, "set a smaller")],
)
def test_a_full_gpu_says_what_to_lower(share: float, remedy: str) -> None:
    plan = tiny.blueprint(Full, EIGHT)
    federation = tiny.Federation(plan, LocalFleet(plan, FleetConfig(gpus_per_actor=share)))
    with pytest.raises(RunFailed, match=rf"{remedy}.*algorithm\.batch_size in client 0, round 1") as caught:
        federation.run(1)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


EVERYBODY = {0, 1, 2, 3}
AllFail = failing(ALGORITHMS["fedavg"], EVERYBODY)
AllFailMerged = failing(ALGORITHMS["mergesfl"], EVERYBODY)
AllFailTiers = failing(ALGORITHMS["hsfl"], EVERYBODY)


@pytest.mark.parametrize("name", ["AllFail", "AllFailMerged", "AllFailTiers"])
def test_all_failing_stops(name: str, folder: Path) -> None:  # noqa: F811
    """A round in which every participant fails is a failure of the run, with the first reason."""
    method: type[Algorithm] = globals()[name]
    running = experiment(method, folder, name=f"test_failures:{name}", on_client_error="skip")
    running.step()
    running.step()
    with pytest.raises(RunFailed, match=r"all participants of round 2 failed.*bad sample"):
        running.step()


def test_both_halves_leave_a_skipped_client_out() -> None:
    """With a client that breaks off after one of its steps, SplitFed v1 is still FedAvg."""
    joined = [
        tiny.Federation(plan, LocalFleet(plan, SKIP)).run(3).weights()
        for name in ("fedavg", "splitfed_v1")
        for plan in [tiny.blueprint(failing(ALGORITHMS[name], {7}, after=1), EIGHT)]
    ]
    assert difference(*joined) < 1e-10
