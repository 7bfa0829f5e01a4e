"""Tuples of tensors cross a cut as single tensors do, in every split method: same numbers, right bytes."""

import itertools
from typing import Any

import pytest
import tiny
import torch
from tiny import PAIR_CUTS, difference, identical

from rayfl import cutting

SPLIT = [
    "sl",
    "splitfed_v1",
    "splitfed_v2",
    "splitfed_v3",
    "splitfed_joint",
    "splitfed_u",
    "mergesfl",
    "hsfl",
]
EQUAL = (6, 6, 6, 6)
PAIRS = list(itertools.combinations(PAIR_CUTS, 2))


def cuts(method: str, last: int) -> dict[str, Any]:
    """The knobs that put the method's highest cut after block ``last``, where a pair crosses."""
    if method == "hsfl":
        return {"cut_layers": (last - 1, last), "num_edges": 2, "intervals": (2, 3)}
    return {"cut_layer": last - 1, "tail_layer": last} if method == "splitfed_u" else {"cut_layer": last}


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9, "participation": 0.5}], ids=["sgd", "momentum"])
@pytest.mark.parametrize("cut", PAIR_CUTS)
def test_splitfed_v1_is_fedavg(cut: int, config: dict[str, Any]) -> None:
    whole = tiny.run(tiny.blueprint("fedavg", model="pair", **config))
    split = tiny.run(tiny.blueprint("splitfed_v1", model="pair", cut_layer=cut, **config))
    assert difference(split, whole) < 1e-12


@pytest.mark.parametrize("pair", PAIRS)
def test_splitfed_u_is_fedavg(pair: tuple[int, int]) -> None:
    whole = tiny.run(tiny.blueprint("fedavg", model="pair", momentum=0.9))
    found = tiny.blueprint("splitfed_u", model="pair", cut_layer=pair[0], tail_layer=pair[1], momentum=0.9)
    assert difference(tiny.run(found), whole) < 1e-12


@pytest.mark.parametrize("pair", PAIRS)
def test_hsfl_is_sgd_on_the_mean_gradient(pair: tuple[int, int]) -> None:
    config: dict[str, Any] = {"local_steps": 1, "batch_size": 6}
    hsfl = tiny.blueprint(
        "hsfl", EQUAL, "pair", edges=(0, 0, 0, 1), num_edges=2, cut_layers=pair, intervals=(1, 1), **config
    )
    whole = tiny.run(tiny.blueprint("fedavg", EQUAL, "pair", weights="uniform", **config), 3)
    assert difference(tiny.run(hsfl, 3), whole) < 1e-12


@pytest.mark.parametrize("cut", PAIR_CUTS)
@pytest.mark.parametrize("method", ["mergesfl", "splitfed_joint"])
def test_one_step_is_sgd_on_the_union_batch(method: str, cut: int) -> None:
    """Merged features of unequal clients, each getting its own slice of both gradients back."""
    sizes, extra = (
        (4, 2, 3, 4),
        {} if method == "mergesfl" else {"weights": "batch", "loss_norm": "merged_mean"},
    )
    plan = tiny.blueprint(method, sizes, "pair", local_steps=1, cut_layer=cut, **extra)
    central = tiny.initial(plan)
    for t in (1, 2):
        rows = [batch for i in range(len(sizes)) for batch in tiny.client_batches(plan, t, i, 1)]
        union = tuple(map(torch.cat, zip(*rows, strict=True)))
        tiny.fit(central, tiny.optimizer_for(plan, central, t), [union])  # type: ignore[list-item]
    assert difference(tiny.run(plan), tiny.state_of(central)) < 1e-12


@pytest.mark.parametrize("method", ["sl", "splitfed_v2"])
def test_the_cut_does_not_matter(method: str) -> None:
    """Of SplitFed v2 with one client at a time, and of sequential split learning always."""
    config = {"participation": 0.25 if method == "splitfed_v2" else 1.0}
    results = [tiny.run(tiny.blueprint(method, model="pair", cut_layer=cut, **config)) for cut in PAIR_CUTS]
    assert all(difference(results[0], other) < 1e-12 for other in results[1:])


@pytest.mark.slow
@pytest.mark.parametrize("cut", [2, 3])
@pytest.mark.parametrize("method", SPLIT)
def test_sealed_is_local(method: str, cut: int) -> None:
    """Spread over hosts that only exchange bytes, to the same bits and the same ledger."""
    plan = tiny.blueprint(method, model="pair", momentum=0.9, **cuts(method, cut))
    here = tiny.Federation(plan).run()
    there = tiny.Federation(plan, tiny.sealed(plan, client_actors=2, placement="separate")).run()
    assert identical(here.weights(), there.weights())
    assert here.traffic(2) == there.traffic(2)


@pytest.mark.parametrize(("cut", "elements"), [(1, 5), (2, 4 + 2), (3, 3 + 2)])
def test_bytes_of_both_tensors_count(cut: int, elements: int) -> None:
    plan = tiny.blueprint("splitfed_v1", model="pair", cut_layer=cut)
    traffic = tiny.Federation(plan).run(1).traffic(1)
    rows = sum(tiny.samples(plan, client) for client in range(len(tiny.SIZES)))
    assert traffic["client-main", "up", "activation"] == 8 * elements * rows
    assert traffic["client-main", "down", "gradient"] == 8 * elements * rows
    assert tiny.cut_elements(plan)["client"] == elements


def test_a_tensor_that_nobody_uses_gets_zeros() -> None:
    """And one without graph below the cut takes no gradient."""
    counts = torch.tensor([1, 2])
    used, idle = cutting.entering((torch.ones(2, 3), torch.ones(2, 1)))
    (used * 2).sum().backward()
    assert [part.tolist() for part in cutting.gradients((used, idle))] == [[[2.0] * 3] * 2, [[0.0]] * 2]
    below = torch.ones(2, 3, requires_grad=True)
    cutting.backward((below * 3, counts), (torch.ones(2, 3), torch.zeros_like(counts)))
    assert below.grad is not None
    assert below.grad.tolist() == [[3.0] * 3] * 2
    assert not cutting.entering(counts).requires_grad  # type: ignore[union-attr]


def test_merging_and_splitting_undo_each_other() -> None:
    batches = [(torch.randn(n, 2), torch.randn(n, 3, 4)) for n in (2, 1, 3)]
    merged = cutting.merged(batches)
    assert [part.shape for part in merged] == [(6, 2), (6, 3, 4)]
    for back, batch in zip(cutting.split(merged, [2, 1, 3]), batches, strict=True):
        assert all(map(torch.equal, back, batch))
    plain = [torch.randn(n, 2) for n in (2, 1)]
    assert all(map(torch.equal, cutting.split(cutting.merged(plain), [2, 1]), plain))


def test_what_is_sent_has_no_graph() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    assert not cutting.detached(x * 2).requires_grad  # type: ignore[union-attr]
    assert not any(part.requires_grad for part in cutting.detached((x * 2, x * 3)))
    assert cutting.times((x, x), 3.0)[1].tolist() == [[3.0, 3.0]] * 2
