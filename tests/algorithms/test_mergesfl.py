"""MergeSFL (Liao et al. 2024): merged batch, one server step, slices rescaled by D / b_i."""

from typing import Any

import pytest
import tiny
import torch
from tiny import difference

from rayfl.algorithms.mergesfl import MergeSFL
from rayfl.messages import Gradient, SmashedBatch


@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str) -> None:
    """tau steps: the top on CE(concat), each bottom on the gradient of its own mean loss at the same top."""
    plan = tiny.blueprint("mergesfl", model=model, local_steps=3, momentum=0.9)
    top, start = tiny.cut_parts(plan)["main"], tiny.state_of(tiny.cut_parts(plan)["client"])
    for t in (1, 2):
        bottoms = [tiny.cut_parts(plan)["client"] for _ in range(4)]
        for bottom in bottoms:
            bottom.load_state_dict(start)
        optimizers = [tiny.optimizer_for(plan, bottom, t) for bottom in bottoms]
        top_optimizer = tiny.optimizer_for(plan, top, t)
        stream = [list(tiny.client_batches(plan, t, i, 3)) for i in range(4)]
        for step in range(3):
            smashed = [bottom(stream[i][step][0]) for i, bottom in enumerate(bottoms)]
            merged = torch.cat([z.detach() for z in smashed]).requires_grad_()
            labels = torch.cat([stream[i][step][1] for i in range(4)])
            top_optimizer.zero_grad()
            tiny.loss(top(merged), labels).backward()
            top_optimizer.step()
            assert merged.grad is not None
            slices = merged.grad.split([len(z) for z in smashed])
            for z, part, optimizer in zip(smashed, slices, optimizers, strict=True):
                optimizer.zero_grad()
                z.backward(part * len(merged) / len(z))
                optimizer.step()
        start = tiny.average([tiny.state_of(bottom) for bottom in bottoms], [4, 3, 4, 4])
    assert difference(tiny.run(plan), {**start, **tiny.state_of(top)}) < 1e-12


def test_slices_are_the_gradients_of_each_clients_own_mean_loss() -> None:
    """D / b_i, not the number of clients: client gradients as if each had been alone, at the old top."""
    plan = tiny.blueprint("mergesfl", (4, 2, 1))
    federation = tiny.Federation(plan)
    draw = torch.Generator().manual_seed(5)
    top = tiny.cut_parts(plan)["main"]
    smashed, expected = {}, {}
    for client, size in enumerate((4, 2, 1)):
        values = torch.randn(size, 5, generator=draw, dtype=torch.float64)
        labels = torch.randint(3, (size,), generator=draw)
        smashed[client] = SmashedBatch(values, labels)
        leaf = values.clone().requires_grad_()
        tiny.loss(top(leaf), labels).backward()
        expected[client] = leaf.grad
    server = federation.party("main")
    server.start_round(1)
    answers: dict[int, Gradient] = server.train_step(smashed)
    for client, gradient in expected.items():
        assert gradient is not None
        assert (answers[client].values - gradient).abs().max() < 1e-15
        assert answers[client].values.shape == smashed[client].activations.shape


def test_one_server_step_per_iteration() -> None:
    """tau optimiser steps a round however many clients, each on a merged batch of all."""
    sizes: list[int] = []

    class Counted(MergeSFL):
        class MainServer(MergeSFL.MainServer):
            def learn(self, learner: Any, batch: Any) -> Gradient:
                sizes.append(len(batch.labels))
                return super().learn(learner, batch)

    tiny.Federation(tiny.blueprint(Counted, local_steps=5)).run(1)
    assert sizes == [4 + 3 + 4 + 4] * 5


def test_incomplete_batches_are_dropped_and_short_clients_repeat() -> None:
    """Sizes 7, 3, 10 and 5 at B = 4 give 1, 1, 2 and 1 batches: one step of whole batches on average."""
    plan = tiny.blueprint("mergesfl")
    federation = tiny.Federation(plan)
    assert federation.algorithm.steps(federation.algorithm.clients, 1) == dict.fromkeys(range(4), 1)
    assert federation.run(1).traffic(1)["client-main", "up", "label"] == 8 * 15


def test_plain_concatenation_is_another_method() -> None:
    """Slices left at 1 / D would shrink the clients' steps: the rescale must show."""

    class Unscaled(MergeSFL):
        class MainServer(MergeSFL.MainServer):
            def train_step(self, smashed: Any) -> dict[int, Gradient]:
                total = sum(len(batch.labels) for batch in smashed.values())
                answers = super().train_step(smashed)
                return {i: Gradient(g.values * len(g.values) / total) for i, g in answers.items()}

            train_step.per_client = True  # type: ignore[attr-defined]

    config = {"local_steps": 1}
    assert difference(tiny.run(tiny.blueprint(Unscaled, **config), 1),
                      tiny.run(tiny.blueprint("mergesfl", **config), 1)) > 1e-4  # fmt: skip


@pytest.mark.parametrize("model", tiny.CUTS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_ledger(model: str, participation: float) -> None:
    """tau D (e A + 8) up, tau D e A down, 2 e |w_C| and a count per worker and round."""
    plan = tiny.blueprint("mergesfl", model=model, local_steps=3, participation=participation)
    federation = tiny.Federation(plan).run(2)
    size, elements = tiny.part_bytes(plan)["client"], tiny.cut_elements(plan)["client"]
    for t in (1, 2):
        chosen = federation.algorithm.sample(t).ids
        rows = 3 * sum(min(4, tiny.SIZES[i]) for i in chosen)
        assert federation.traffic(t) == {
            ("client-main", "up", "activation"): 8 * elements * rows,
            ("client-main", "up", "label"): 8 * rows,
            ("client-main", "down", "gradient"): 8 * elements * rows,
            ("client-fed", "down", "weights"): len(chosen) * size,
            ("client-fed", "up", "weights"): len(chosen) * size,
            ("client-fed", "up", "counts"): len(chosen) * 8,
        }
