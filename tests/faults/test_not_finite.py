"""A NaN or an infinity that a client sends: never averaged in silence."""

from typing import Any

import pytest
import small
import torch

from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.splitfed_v1 import SplitFedV1
from rayfl.config import ExperimentConfig
from rayfl.experiment import Experiment
from rayfl.fleet import Fleet, SealedFleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.layout import plan_layout
from rayfl.messages import Gradient, PooledUpdate, SmashedBatch, Update, is_finite
from rayfl.roles import Client, SplitClient

WHO, WHEN = {2}, 2


class Bad(Client):
    """Sends a NaN in round 2, where it is one of those."""

    def update(self) -> Update:
        due = self.learner is not None and self.t == WHEN and self.id in WHO
        update = super().update()
        if due:
            next(iter(update.weights.values())).view(-1)[0] = float("nan")
        return update

    def receive(self, *arguments: Any) -> None:
        self.t = arguments[1]
        super().receive(*arguments)


class BadSplit(SplitClient):
    """Sends an infinity in round 2, where it is one of those."""

    def receive(self, *arguments: Any) -> None:
        self.t = arguments[1]
        super().receive(*arguments)

    def forward(self) -> SmashedBatch:
        smashed = super().forward()
        if self.t == WHEN and self.id in WHO:
            assert isinstance(smashed.activations, torch.Tensor)
            return SmashedBatch(smashed.activations / 0.0, smashed.labels)
        return smashed


class FailingSplit(BadSplit):
    """Raises where the other one sends an infinity."""

    def forward(self) -> SmashedBatch:
        if self.t == WHEN and self.id in WHO:
            raise ValueError("broken")
        return SplitClient.forward(self)


class Whole(FedAvg):
    """FedAvg with bad clients."""

    Client = Bad


class Split(SplitFedV1):
    """SplitFed v1 with bad clients."""

    Client = BadSplit


class Broken(SplitFedV1):
    """SplitFed v1 with clients that raise."""

    Client = FailingSplit


def sealed(config: ExperimentConfig, plan: Blueprint) -> Fleet:
    return SealedFleet(plan, plan_layout(plan, small.APART), config.fleet)


def experiment(method: type[FedAvg] | type[SplitFedV1], on_client_error: str, **more: Any) -> Experiment:
    fleet = FleetConfig(on_client_error=on_client_error)  # type: ignore[arg-type]
    name = f"test_not_finite:{method.__name__}"
    return Experiment(small.config(method, fleet, name, **more), sealed)


@pytest.mark.parametrize(
    ("method", "what"),
    [(Whole, "Update (in client 2, round 2, Bad.train)"),
     (Split, "SmashedBatch (in client 2, round 2, BadSplit.forward)")],
)  # fmt: skip
def test_the_run_ends_as_diverged_and_says_who_and_when(
    method: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In its own round, though nobody would have looked at the model before round 4; its score tells."""
    running = experiment(method, "stop", eval_every=4)
    result = running.run()
    assert (result.status, result.rounds) == ("DIVERGED", 2)
    assert f"diverged: client 2 sent a NaN or an infinity in its {what}" in caplog.text
    assert result.metrics["global/test_loss"] != result.metrics["global/test_loss"]


def test_skipped_it_is_as_if_the_client_had_failed() -> None:
    """The model never sees it: the same bits as with an exception at that point, and counted."""
    skipped, failed = (experiment(method, "skip").run() for method in (Split, Broken))
    assert skipped.status == failed.status == "FINISHED"
    assert [row.get("client/num_failed") for row in skipped.history] == [None, None, 1.0, None, None]
    assert skipped.weights_sha256 == failed.weights_sha256


def test_where_nobody_is_left_the_run_has_diverged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(globals(), "WHO", {0, 1, 2, 3})
    running = experiment(Whole, "skip")
    assert running.run().status == "DIVERGED"
    assert "diverged: client 0 sent a NaN" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_found_wherever_it_is(value: float) -> None:
    for shape in ((1,), (3, 5)):
        bad = torch.ones(shape)
        bad.view(-1)[-1] = value
        assert not is_finite(Update({"a": torch.ones(2), "b": bad}, 1.0))
        assert not is_finite(SmashedBatch((torch.ones(2, 3), bad), torch.zeros(2, dtype=torch.int64)))
        assert not is_finite(Gradient(bad.to(torch.bfloat16)))
    assert not is_finite(Update({}, value))


def test_what_is_large_is_not_infinite() -> None:
    """Sums that overflow, integers, opposite signs, nothing at all."""
    assert is_finite(Gradient(torch.full((4,), 3e38)))
    assert is_finite(Gradient(torch.full((4,), 60000.0, dtype=torch.float16)))
    assert is_finite(Gradient(torch.tensor([3e38, 3e38, -3e38])))
    assert is_finite(SmashedBatch(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
    counters = torch.full((3,), 2**62)
    assert is_finite(PooledUpdate({"n": counters}, {"n": torch.int64}, 1.0, {"weights": 24}))
