"""SplitFed v1 (Thapa et al. 2022, Algorithms 1 and 2): replicas, both halves averaged, closed-form bytes."""

from typing import Any

import pytest
import tiny
from tiny import difference


@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str) -> None:
    """Two optimisers per client, one per half, both halves averaged over participants by samples."""
    plan = tiny.blueprint("splitfed_v1", model=model, cut_layer=1, momentum=0.9, participation=0.5)
    federation = tiny.Federation(plan)
    start = tiny.state_of(tiny.initial(plan))
    for t in (1, 2):
        chosen, results = federation.algorithm.sample(t).ids, []
        for client in chosen:
            parts = tiny.cut_parts(plan)
            for part in parts.values():
                part.load_state_dict({k: v for k, v in start.items() if k in part.state_dict()})
            optimizers = [tiny.optimizer_for(plan, part, t) for part in parts.values()]
            for inputs, labels in tiny.client_batches(plan, t, client):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                smashed = parts["client"](inputs)
                received = smashed.detach().requires_grad_()
                tiny.loss(parts["main"](received), labels).backward()
                smashed.backward(received.grad)
                for optimizer in optimizers:
                    optimizer.step()
            results.append({**tiny.state_of(parts["client"]), **tiny.state_of(parts["main"])})
        start = tiny.average(results, [plan.facts.num_samples[i] for i in chosen])
    assert difference(federation.run(2).weights(), start) < 1e-12


def test_partial_rounds_move_the_server_too() -> None:
    """Below full participation the server half is still averaged (the authors' script never does)."""
    plan = tiny.blueprint("splitfed_v1", participation=0.5)
    before, after = tiny.state_of(tiny.initial(plan)), tiny.run(plan, 1)
    assert all((before[name] != after[name]).any() for name in before)


def test_server_optimiser_renewed_per_batch_is_sign_descent() -> None:
    """A fresh Adam per batch, as in the authors' code, steps by eta g / (|g| + eps) on the server alone."""
    plan = tiny.blueprint(
        "splitfed_v1", (12,), optimizer="adam", lr=0.01, reset_optimizer="per_batch", local_epochs=2
    )
    parts = tiny.cut_parts(plan)
    optimizer = tiny.optimizer_for(plan, parts["client"])
    for inputs, labels in tiny.client_batches(plan, 1, 0):
        parts["client"].zero_grad()
        parts["main"].zero_grad()
        tiny.loss(parts["main"](parts["client"](inputs)), labels).backward()
        optimizer.step()
        for p in parts["main"].parameters():
            assert p.grad is not None
            p.data -= 0.01 * p.grad / (p.grad.abs() + 1e-8)
    state = {**tiny.state_of(parts["client"]), **tiny.state_of(parts["main"])}
    assert difference(tiny.run(plan, 1), state) < 1e-12
    paper = tiny.blueprint("splitfed_v1", (12,), optimizer="adam", lr=0.01, local_epochs=2)
    assert difference(tiny.run(paper, 1), state) > 1e-3


def test_uniform_shares() -> None:
    """``weights: uniform`` averages both halves alike: FedAvg's uniform mean."""
    split = tiny.run(tiny.blueprint("splitfed_v1", weights="uniform"))
    assert difference(split, tiny.run(tiny.blueprint("fedavg", weights="uniform"))) < 1e-12
    assert difference(split, tiny.run(tiny.blueprint("splitfed_v1"))) > 1e-5


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize(
    ("model", "cut"), [(model, cut) for model, cuts in tiny.CUTS.items() for cut in cuts]
)
def test_ledger(model: str, cut: int, bn: str) -> None:
    """Per client and round n E (e A + 8) + e |w_C| + 8 up, n E e A + e |w_C| down; replicas cost nothing."""
    plan = tiny.blueprint("splitfed_v1", model=model, cut_layer=cut, local_epochs=2, participation=0.5, bn=bn)
    federation = tiny.Federation(plan).run(2)
    client = tiny.cut_parts(plan)["client"].state_dict()
    stays = ("running", "num_batches") if bn == "local" else ()
    up = {name: value for name, value in client.items() if not any(word in name for word in stays)}
    elements = tiny.cut_elements(plan)["client"]
    for t in (1, 2):
        chosen = federation.algorithm.sample(t).ids
        rows = sum(tiny.samples(plan, i) for i in chosen)
        assert rows == 2 * sum(tiny.SIZES[i] - (model == "batch" and tiny.SIZES[i] == 5) for i in chosen)
        assert federation.traffic(t) == {
            ("client-main", "up", "activation"): 8 * elements * rows,
            ("client-main", "up", "label"): 8 * rows,
            ("client-main", "down", "gradient"): 8 * elements * rows,
            ("client-fed", "down", "weights"): 2 * tiny.num_bytes(client),
            ("client-fed", "up", "weights"): 2 * tiny.num_bytes(up),
            ("client-fed", "up", "counts"): 2 * 8,
        }


def test_single_precision_halves_the_bytes_but_not_labels_or_counters() -> None:
    """e = 4: activations, gradients and weights shrink; int64 labels and batch counters stay 8 bytes."""
    lines: list[dict[tuple[str, str, str], int]] = []
    for dtype in ("float64", "float32"):
        config: dict[str, Any] = {"model": "batch", "dtype": dtype}
        lines.append(tiny.Federation(tiny.blueprint("splitfed_v1", **config)).run(1).traffic(1))
    double, single = lines
    assert 2 * single["client-main", "up", "activation"] == double["client-main", "up", "activation"]
    assert single["client-main", "up", "label"] == double["client-main", "up", "label"]
    counters = 4 * 8
    weights = ("client-fed", "up", "weights")
    assert 2 * (single[weights] - counters) == double[weights] - counters


def test_replicas_and_modules_go_back_after_a_round() -> None:
    """Between rounds no replica is live and the host lends no more modules than were live at once."""
    federation = tiny.Federation(tiny.blueprint("splitfed_v1")).run(3)
    main = federation.party("main")
    assert main.replicas == {}
    assert {part: len(shelf) for part, shelf in main.host._shelf.items()} == {"client": 4, "main": 4}
