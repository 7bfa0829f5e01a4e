"""What a message would weigh on a wire: every tensor as sent, 8 bytes a scalar."""

from dataclasses import dataclass

import pytest
import torch

from rayfl.messages import Gradient, PooledUpdate, Relay, SmashedBatch, Update, moved, sent_as, weigh

MESSAGES = [
    (SmashedBatch(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), {"activation": 60, "label": 24}),
    (SmashedBatch(torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)),
     {"activation": 120, "label": 24}),
    (Gradient(torch.zeros(3, 5, dtype=torch.bfloat16)), {"gradient": 30}),
    (Update({"w": torch.zeros(4), "running_mean": torch.zeros(2), "n": torch.tensor(1)}, 7.0),
     {"weights": 16 + 8 + 8, "counts": 8}),
    ({"w": torch.zeros(4), "n": torch.tensor(1)}, {"weights": 24}),
    (Relay({"w": torch.zeros(2)}, {}), {"weights": 8}),
    (Relay({"w": torch.zeros(2)}, {"state": {0: {"momentum_buffer": torch.zeros(2)}}}),
     {"weights": 8, "aux": 8}),
    (PooledUpdate({"w": torch.zeros(4, dtype=torch.float64)}, {"w": torch.float32}, 3.0, {"weights": 32}),
     {"weights": 32}),
    (5, {"control": 8}),
    (0.5, {"control": 8}),
    ([1, 2, torch.zeros(3)], {"control": 28}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), MESSAGES)
def test_weigh(message: object, expected: dict[str, int]) -> None:
    """Bytes by kind, by hand; 64-bit counters weigh 8, a pooled sum what its members would."""
    assert {kind: size for kind, size in weigh(message).items() if size} == expected


@dataclass(frozen=True)
class Both:
    """A message with another one inside."""

    update: Update = sent_as("aux")
    note: int = sent_as("counts")


def test_a_message_inside_another_keeps_its_kinds() -> None:
    assert weigh(Both(Update({"w": torch.zeros(4)}, 7.0), 1)) == {"weights": 16, "counts": 16}


def test_nothing_weighs_nothing() -> None:
    """None and an empty mapping cross for free."""
    assert sum(weigh(None).values()) == sum(weigh({}).values()) == 0


def test_messages_are_frozen() -> None:
    """A field can't be replaced."""
    message = Gradient(torch.zeros(1))
    with pytest.raises(AttributeError):
        message.values = torch.ones(1)  # type: ignore[misc]


def test_moving_a_message_changes_nothing_but_the_device() -> None:
    """The meta device stands in for an accelerator."""
    message = {0: (SmashedBatch(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)), "plain", 1.5)}
    batch, plain, number = moved(message, "meta")[0]
    assert batch.activations.device.type == batch.labels.device.type == "meta"
    assert (batch.activations.shape, plain, number) == ((2, 3), "plain", 1.5)
