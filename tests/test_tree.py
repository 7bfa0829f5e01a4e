"""One order of summation: whoever adds what, the bits are those of the definition."""

import itertools
from typing import Any

import pytest
import torch
from tiny import identical
from torch import Tensor

from rayfl import tree
from rayfl.messages import PooledUpdate, Update

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def updates(count: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[int, Update]:
    """Random weights with a counter, masses from 1 on."""
    draw = torch.Generator().manual_seed(seed)
    return {
        i: Update(
            {
                "weight": torch.randn(3, 5, generator=draw, dtype=torch.float64).to(dtype),
                "num_batches_tracked": torch.tensor(i % 7),
            },
            float(1 + (i * 5) % 11),
        )
        for i in range(count)
    }


def mean(members: dict[int, Any], num_ids: int) -> dict[str, Tensor]:
    result = tree.weighted_mean(members, num_ids)
    assert result is not None
    return dict(result.weights)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 40, 100])
def test_pooling_changes_no_bit(count: int, dtype: torch.dtype) -> None:
    """A mean of whole blocks summed at their hosts = the mean of single updates, whoever pools."""
    members = updates(count, dtype)
    expected = mean(members, count)
    assert identical(mean(tree.pool(members, count), count), expected)
    blocks = tree.pool(members, count)
    some = {i: block for i, block in blocks.items() if tree.block_of(i, count) % 2}
    rest = {i: u for i, u in members.items() if not tree.block_of(i, count) % 2}
    assert identical(mean({**some, **rest}, count), expected)
    assert expected["weight"].dtype == dtype


@pytest.mark.parametrize("count", [3, 20, 50])
def test_the_definition(count: int) -> None:
    """Blocks of contiguous ids in float64, then the blocks in order: ten lines, bit for bit."""
    members = updates(count, torch.float32)
    blocks = []
    for _, ids in itertools.groupby(range(count), key=lambda i: i * 16 // count):
        mine = [members[i] for i in ids]
        total = mine[0].weights["weight"].double() * mine[0].mass
        for other in mine[1:]:
            total = total + other.weights["weight"].double() * other.mass
        blocks.append(total)
    whole = blocks[0]
    for block in blocks[1:]:
        whole = whole + block
    whole = whole / sum(update.mass for update in members.values())
    assert torch.equal(mean(members, count)["weight"], whole.float())


def test_constants() -> None:
    """Clients of masses a and b that return u and v everywhere: (a u + b v) / (a + b), by hand 8 / 4."""
    members = {
        0: Update({"w": torch.full((2,), 5.0)}, 1.0),
        1: Update({"w": torch.full((2,), 1.0)}, 3.0),
    }
    assert mean(members, 2)["w"].tolist() == [2.0, 2.0]


def test_a_single_update_comes_back_as_it_is() -> None:
    """One update is its own average in every bit, NaN and negative zeros included; its mass is kept."""
    weights = {"w": torch.tensor([0.1, -0.0, float("nan")], dtype=torch.float32), "n": torch.tensor(3)}
    only = Update(weights, 3.0)
    assert tree.weighted_mean({4: only}, 9) is only
    assert tree.weighted_mean(tree.pool({4: only}, 9), 9) is only
    assert (
        tree.weighted_mean({4: only, 5: Update({"w": torch.ones(3), "n": torch.tensor(9)}, 0.0)}, 9) is only
    )


def test_no_mass_no_average() -> None:
    """Nobody, or nobody with data, gives no average."""
    assert tree.weighted_mean({}, 4) is None
    assert tree.weighted_mean({0: Update({"w": torch.ones(1)}, 0.0)}, 4) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_identical_states_average_to_themselves(dtype: torch.dtype) -> None:
    """The mean of equal states is that state: exactly below float64, to rounding in it."""
    weights = updates(1, dtype)[0].weights
    result = mean({i: Update(weights, float(i + 1)) for i in range(20)}, 20)
    tolerance = 1e-15 if dtype == torch.float64 else 0.0
    assert torch.allclose(result["weight"], weights["weight"], rtol=tolerance, atol=tolerance)
    assert result["weight"].dtype == dtype


@pytest.mark.parametrize("num_ids", [3, 48])
def test_counters_take_the_maximum(num_ids: int) -> None:
    """Integer entries, of one block or several, are never averaged and stay exact beyond float precision."""
    big = 2**53 + 1
    members = {i: Update({"n": torch.tensor(n)}, 1.0) for i, n in enumerate([3, big, 7])}
    result = mean(members, num_ids)["n"]
    assert (result.dtype, result.item()) == (torch.int64, big)


def test_order_of_arrival_and_scale_of_mass_do_not_matter() -> None:
    """Ids say where an update is added, not when it came; only ratios of masses count."""
    members = updates(30)
    expected = mean(members, 30)
    assert identical(mean(dict(reversed(members.items())), 30), expected)
    scaled = {i: Update(u.weights, 4 * u.mass) for i, u in members.items()}
    assert identical(mean(scaled, 30), expected)
    thirds = {i: Update(u.weights, u.mass / 3) for i, u in members.items()}
    assert torch.allclose(mean(thirds, 30)["weight"], expected["weight"], rtol=0, atol=1e-14)


def test_renaming_ids_changes_rounding_only() -> None:
    """Who is called what moves the order of the sum, so the mean agrees to rounding."""
    members = updates(30)
    renamed = {29 - i: update for i, update in members.items()}
    assert torch.allclose(mean(renamed, 30)["weight"], mean(members, 30)["weight"], rtol=0, atol=1e-14)


def test_updates_are_left_alone() -> None:
    """Averaging writes to none of the updates or block sums, the first one included."""
    members = updates(40)
    before = {i: tree.clone(u.weights) for i, u in members.items()}
    pooled = tree.pool(members, 40)
    assert identical(mean(pooled, 40), mean(pooled, 40))
    assert all(identical(members[i].weights, before[i]) for i in members)


def test_half_precision_is_summed_in_float64() -> None:
    """Masses whose products overflow float16 (max 65504) average to the right number."""
    members = {i: Update({"w": torch.full((1,), 1000.0, dtype=torch.float16)}, 500.0) for i in range(3)}
    assert mean(members, 3)["w"].item() == 1000.0


def test_a_pooled_sum_weighs_like_its_members() -> None:
    """Pooling is a shortcut of the machine: bytes are those of the single updates."""
    (block,) = tree.pool({0: updates(1)[0], 1: updates(1)[0]}, 17 * 2).values()
    assert isinstance(block, PooledUpdate)
    assert block.wire_bytes == {"weights": 2 * (15 * 8 + 8), "counts": 16}


def test_squared_distance() -> None:
    """(1 - 3)^2 + 2 (0 - 1)^2 = 6, with gradient 2 (w - reference)."""
    one, two = torch.tensor([1.0], requires_grad=True), torch.zeros(2, requires_grad=True)
    distance = tree.squared_distance(
        [("one", one), ("two", two)],
        {"one": torch.tensor([3.0]), "two": torch.ones(2), "other": torch.ones(1)},
    )
    distance.backward()
    assert distance.item() == 6.0
    assert one.grad is not None
    assert one.grad.tolist() == [-4.0]


def test_fingerprint() -> None:
    """The fingerprint follows names, values, shapes and dtypes, not the order of insertion."""
    a, b = torch.arange(4.0), torch.ones((), dtype=torch.bfloat16)
    base = tree.sha256({"a": a, "b": b})
    assert base == tree.sha256({"b": b.clone(), "a": a.clone()})
    others = [{"a": a, "c": b}, {"a": a + 1, "b": b}, {"a": a.view(2, 2), "b": b}, {"a": a.double(), "b": b}]
    assert base not in {tree.sha256(other) for other in others}
