"""FedProx against Li et al. 2020: the pull, the closed form of a quadratic, partial work."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tiny import difference
from torch import Tensor, nn

from rayfl import roles, tree
from rayfl.algorithms.fedprox import FedProx
from rayfl.host import Batch


@pytest.mark.parametrize("model", tiny.CUTS)
def test_the_first_step_feels_no_pull(model: str) -> None:
    """At the anchor the pull is zero, so one local step is FedAvg's for any mu; two are not."""
    prox, avg = {"mu": 5.0}, {}
    for steps, same in [(1, True), (2, False)]:
        one = tiny.run(tiny.blueprint("fedprox", model=model, local_steps=steps, **prox), 1)
        other = tiny.run(tiny.blueprint("fedavg", model=model, local_steps=steps, **avg), 1)
        assert (difference(one, other) < 1e-15) == same


def test_plain_loop() -> None:
    """w <- w - eta (g + mu (w - w_t)) over parameters alone, BatchNorm buffers untouched by it."""
    plan = tiny.blueprint("fedprox", (12,), "batch", mu=0.7, local_epochs=2)
    network = tiny.initial(plan)
    anchor = {name: p.detach().clone() for name, p in network.named_parameters()}
    for inputs, labels in tiny.client_batches(plan, 1, 0):
        network.zero_grad()
        tiny.loss(network(inputs), labels).backward()
        with torch.no_grad():
            for name, p in network.named_parameters():
                assert p.grad is not None
                p -= 0.1 * (p.grad + 0.7 * (p - anchor[name]))
    assert difference(tiny.run(plan, 1), tiny.state_of(network)) < 1e-14


def test_eta_mu_of_one_lands_on_the_anchor() -> None:
    """Without a data gradient, a step with eta mu = 1 goes from anywhere exactly to the anchor."""
    weight, anchor = nn.Parameter(torch.tensor([3.0, -5.0])), {"w": torch.tensor([0.5, 2.0])}
    (4.0 / 2 * tree.squared_distance([("w", weight)], anchor)).backward()
    torch.optim.SGD([weight], lr=0.25).step()
    assert torch.equal(weight.detach(), anchor["w"])


A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
B = torch.tensor([1.0, -2.0], dtype=torch.float64)


class Quadratic(roles.Client):
    """Minimises w A w / 2 - b w instead of a loss on data."""

    def loss(self, batch: Batch) -> Tensor:
        (w,) = (p.flatten()[:2] for p in list(self.model.parameters())[:1])
        return w @ A @ w / 2 - B @ w


class QuadraticProx(FedProx):
    """FedProx on the quadratic."""

    class Client(FedProx.Client, Quadratic):
        """The pull on top of the quadratic."""


def test_quadratic_closed_form() -> None:
    """Solved to convergence, w_k = (A + mu I)^-1 (b + mu w), and it moves less the larger mu is."""
    moved = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        plan = tiny.blueprint(QuadraticProx, (4,), mu=mu, lr=0.08, local_steps=500)
        anchor = next(iter(plan.model().parameters())).detach().double().flatten()[:2]
        expected = torch.linalg.solve(A + mu * torch.eye(2, dtype=torch.float64), B + mu * anchor)
        found = next(iter(tiny.run(plan, 1).values())).flatten()[:2]
        assert (found - expected).abs().max() < 1e-10
        moved.append((found - anchor).norm().item())
    assert moved == sorted(moved, reverse=True)


def test_stragglers_do_part_of_the_work_and_count() -> None:
    """With 9 of 10 late, all 10 are averaged (FedAvg keeps 1); the late make 1 to E-1 of E epochs."""
    config: dict[str, Any] = {"stragglers": 0.9, "local_epochs": 5}
    prox = tiny.Federation(tiny.blueprint("fedprox", (4,) * 10, **config)).run(1)
    avg = tiny.Federation(tiny.blueprint("fedavg", (4,) * 10, **config)).run(1)
    assert prox.traffic(1)["client-fed", "up", "counts"] == 80
    assert avg.traffic(1)["client-fed", "up", "counts"] == 8
    made: set[int] = set()
    for t in range(1, 30):
        clients = prox.algorithm.sample(t)
        late = prox.algorithm.stragglers(clients, t)
        assert late == avg.algorithm.stragglers(avg.algorithm.sample(t), t)
        work = prox.algorithm.steps(clients, t)
        assert {work[i] for i in set(clients.ids) - late} == {5}
        made |= {work[i] for i in late}
    assert made == {1, 2, 3, 4}


def test_partial_work_is_a_shorter_round() -> None:
    """A straggler's update is that of the same batches, cut short."""
    plan = tiny.blueprint("fedprox", (8, 8), mu=0.3, stragglers=0.5, local_epochs=4)
    federation = tiny.Federation(plan)
    work = federation.algorithm.steps(federation.algorithm.clients, 1)
    assert sorted(work.values())[0] < 8
    fed = federation.party("fed").weights()
    states = [
        tiny.Federation(plan).party("client", i).train(fed, 1, steps).weights for i, steps in work.items()
    ]
    assert difference(federation.run(1).weights(), tiny.average(states, [8, 8])) < 1e-15


def test_printed_form() -> None:
    """Sampling by size with uniform shares, as printed: the plain mean of those sampled."""
    plan = tiny.blueprint("fedprox", (9, 2, 2), participation=0.67, sampling="by_size", weights="uniform")
    federation = tiny.Federation(plan)
    ids, fed = federation.algorithm.sample(1).ids, federation.party("fed").weights()
    states = [tiny.Federation(plan).party("client", i).train(fed, 1).weights for i in ids]
    assert len(ids) == 2
    assert difference(federation.run(1).weights(), tiny.average(states, [1, 1])) < 1e-15


def test_ledger() -> None:
    """As FedAvg: the anchor is kept, not sent again."""
    plan = tiny.blueprint("fedprox", model="batch", participation=0.5)
    size = tiny.num_bytes(plan.model().double().state_dict())
    assert tiny.Federation(plan).run(1).traffic(1) == {
        ("client-fed", "down", "weights"): 2 * size,
        ("client-fed", "up", "weights"): 2 * size,
        ("client-fed", "up", "counts"): 16,
    }
    assert np.isfinite(size)
