"""Linear probes: what is fitted, on which half, and what is judged on the other."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.sga.linear_probe import PENALTY, fit, probe_losses
from rayfl.algorithms.sga.messages import Probe
from rayfl.algorithms.sga.signals import pooled

Y, D = 3, 4


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(seed: int, count: int) -> Tensor:
    return torch.randint(Y, (count,), generator=torch.Generator().manual_seed(seed))


def test_fit_is_the_minimum() -> None:
    """Where the gradient of mean cross-entropy plus penalty, written out in numpy, vanishes."""
    x, y = draw(1, 40, D), labels(2, 40)
    weight, bias = (value.numpy() for value in fit(x, y, Y))
    scores = np.exp(x.numpy() @ weight + bias)
    error = (scores / scores.sum(1, keepdims=True) - np.eye(Y)[y.numpy()]) / 40
    assert np.abs(x.numpy().T @ error + 2 * PENALTY * weight).max() < 1e-5
    assert np.abs(error.sum(0)).max() < 1e-5


def test_fit_against_plain_descent() -> None:
    """Thousands of plain gradient steps end at the same weights."""
    x, y = draw(1, 40, D), labels(2, 40)
    weight, bias = fit(x, y, Y)
    w, b = torch.zeros(D, Y, dtype=torch.float64), torch.zeros(Y, dtype=torch.float64)
    for _ in range(4000):
        error = ((x @ w + b).softmax(1) - F.one_hot(y, Y)) / 40
        w, b = w - (x.T @ error + 2 * PENALTY * w), b - error.sum(0)
    assert torch.allclose(weight, w, rtol=0, atol=1e-3)
    assert torch.allclose(bias, b, rtol=0, atol=1e-3)


def clusters(y: Tensor, seed: int, apart: float = 8.0) -> Tensor:
    """[b, D, 2, 2] maps, around another point for each class."""
    return apart * torch.eye(Y, D, dtype=torch.float64)[y][:, :, None, None] + draw(seed, len(y), D, 2, 2)


def probes(sizes: tuple[int, ...] = (20, 10, 7)) -> dict[int, Probe]:
    """Clients whose reference features tell the classes apart, and whose shallow ones say nothing."""
    found = {}
    for client, size in enumerate(sizes):
        y = labels(client, size)
        found[client] = Probe(draw(10 + client, size, D, 2, 2), clusters(y, 20 + client), y)
    return found


def test_features_that_separate_cost_little() -> None:
    found = probe_losses(probes(), Y, pooled)
    assert list(found) == [0, 1, 2]
    for losses in found.values():
        assert losses.reference < 0.1
        assert losses.shallow > 0.7


def test_by_hand() -> None:
    """Standardised by all first halves, one fit for all clients, mean cross-entropy of each second half."""
    given = probes()
    found = probe_losses(given, Y, pooled)
    halves = {client: len(probe.labels) // 2 for client, probe in given.items()}
    assert halves[2] == 3
    for side in ("shallow", "reference"):
        z = {client: getattr(probe, side).mean((2, 3)) for client, probe in given.items()}
        train = torch.cat([z[client][:half] for client, half in halves.items()])
        mean, scale = train.mean(0), (train - train.mean(0)).pow(2).mean(0).sqrt()
        y = torch.cat([given[client].labels[:half] for client, half in halves.items()])
        weight, bias = fit((train - mean) / scale, y, Y)
        for client, half in halves.items():
            logits = (z[client][half:] - mean) / scale @ weight + bias
            expected = F.cross_entropy(logits, given[client].labels[half:]).item()
            assert getattr(found[client], side) == pytest.approx(expected, abs=1e-9)


def with_labels(probe: Probe, y: Tensor) -> Probe:
    return Probe(probe.shallow, probe.reference, y)


def test_second_halves_are_judged_and_not_learnt_from() -> None:
    """Wrong labels there cost their client and nobody else; wrong ones in the first half cost others."""
    right = probe_losses(probes(), Y, pooled)
    given = probes()
    y = given[0].labels.clone()
    y[10:] = (y[10:] + 1) % Y
    found = probe_losses({**given, 0: with_labels(given[0], y)}, Y, pooled)
    assert found[0].reference > right[0].reference + 3
    assert found[1] == right[1]
    assert found[2] == right[2]
    y = given[0].labels.clone()
    y[:10] = (y[:10] + 1) % Y
    found = probe_losses({**given, 0: with_labels(given[0], y)}, Y, pooled)
    assert found[1].reference > right[1].reference + 0.1


def test_scale_and_place_of_features_have_no_say() -> None:
    """Nor does one that never changes."""
    given = probes()
    right = probe_losses(given, Y, pooled)
    moved = {c: Probe(1e3 * one.shallow - 5, one.reference / 1e3 + 2, one.labels) for c, one in given.items()}
    found = probe_losses(moved, Y, pooled)
    for client in given:
        assert found[client].shallow == pytest.approx(right[client].shallow, abs=1e-6)
        assert found[client].reference == pytest.approx(right[client].reference, abs=1e-6)
    constant = {c: Probe(torch.ones_like(one.shallow), one.reference, one.labels) for c, one in given.items()}
    assert np.isfinite(probe_losses(constant, Y, pooled)[0].shallow)


def test_pools_as_told() -> None:
    """By the server's way of pooling, here the class token."""
    y = labels(0, 20)
    tokens = torch.cat([clusters(y, 1)[:, None, :, 0, 0], 50 * draw(2, 20, 3, D)], dim=1)
    given = {0: Probe(tokens, tokens, y)}
    assert probe_losses(given, Y, lambda z: pooled(z, "cls"))[0].shallow < 0.2
    assert probe_losses(given, Y, pooled)[0].shallow > 0.5


def test_a_client_of_one_sample_is_judged_by_the_others_fit() -> None:
    given = {
        **probes(),
        3: Probe(clusters(torch.tensor([1]), 5), clusters(torch.tensor([1]), 5), torch.tensor([1])),
    }
    assert probe_losses(given, Y, pooled)[3].reference < 0.1


def test_float32_features() -> None:
    """Fitted in float64: close to what float64 features give."""
    given = probes()
    single = {c: Probe(one.shallow.float(), one.reference.float(), one.labels) for c, one in given.items()}
    right = probe_losses(given, Y, pooled)
    for client, losses in probe_losses(single, Y, pooled).items():
        assert losses.shallow == pytest.approx(right[client].shallow, abs=1e-4)


def test_nobody_to_judge() -> None:
    """As when every client of a calibration round failed to show up."""
    assert probe_losses({}, Y, pooled) == {}
