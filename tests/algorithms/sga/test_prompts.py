"""Private prompts: how they enter features, and what their scores make of them (FedSGA, eq. 2)."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.sga.prompts import FRAME, Prompts, contributions, descriptor, importance
from rayfl.models import insert_prompts
from rayfl.seeding import generator

D = 5


def make(kind: Any, count: int = 3, shape: tuple[int, ...] = (D, 4, 6), std: float = 0.5) -> Prompts:
    return Prompts(kind, count, shape, std, 1.0, generator(0, "prompts")).double()


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def silenced(prompts: Prompts) -> Prompts:
    with torch.no_grad():
        prompts.tokens.zero_()
    return prompts


@pytest.mark.parametrize("kind", ["attn", "add_mean", "pad"])
def test_zero_prompts_change_nothing(kind: str) -> None:
    """Bit by bit, so that any pretrained prefix stays what it is."""
    x = features(2, D, 4, 6)
    assert torch.equal(silenced(make(kind))(x), x)
    assert not torch.equal(make(kind)(x), x)


def test_attention_location_by_location() -> None:
    """h_u + sum_k softmax_k(<h_u, eps_k> / sqrt(d)) eps_k, in loops."""
    prompts, x = make("attn"), features(2, D, 4, 6)
    eps, expected = prompts.tokens.detach(), x.clone()
    for b, i, j in itertools.product(range(2), range(4), range(6)):
        h = x[b, :, i, j]
        weights = torch.stack([(h @ eps[k] / D**0.5).exp() for k in range(3)])
        for k in range(3):
            expected[b, :, i, j] += weights[k] / weights.sum() * eps[k]
    assert torch.allclose(prompts(x), expected, rtol=0, atol=1e-12)


def test_added_mean() -> None:
    prompts, x = make("add_mean"), features(2, D, 4, 6)
    assert torch.allclose(prompts(x)[1, :, 2, 3], x[1, :, 2, 3] + prompts.tokens.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["attn", "add_mean"])
def test_features_without_locations(kind: str) -> None:
    """[b, d] is a map of one location."""
    prompts, x = make(kind, shape=(D,)), features(2, D)
    assert torch.allclose(prompts(x), prompts(x[:, :, None, None])[:, :, 0, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_frame(count: int) -> None:
    """Only the border of an image changes; its pixels hold the tokens, chunk after chunk, to the last."""
    prompts, x = make("pad", count=count, shape=(3, 8, 9)), features(2, 3, 8, 9)
    added = prompts(x) - x
    inside = added[:, :, FRAME:-FRAME, FRAME:-FRAME]
    size = 3 * (8 * 9 - 4 * 5)
    assert not inside.any()
    border = torch.ones(8, 9, dtype=torch.bool)
    border[FRAME:-FRAME, FRAME:-FRAME] = False
    for b in range(2):
        assert torch.allclose(
            added[b][:, border].flatten(), prompts.tokens.flatten()[:size], rtol=0, atol=1e-12
        )
    assert 0 <= prompts.tokens.numel() - size < count
    assert prompts.tokens.shape[0] == count


def test_frame_of_a_tiny_image() -> None:
    """An image that is all border."""
    prompts, x = make("pad", shape=(1, 4, 3)), features(1, 1, 4, 3)
    assert torch.allclose((prompts(x) - x).flatten(), prompts.tokens.flatten()[:12], rtol=0, atol=1e-12)


def test_tokens_come_behind_the_class_token() -> None:
    prompts, x = make("tokens", shape=(7, D)), features(2, 7, D)
    out = prompts(x)
    assert torch.equal(out, insert_prompts(x, prompts.tokens))
    assert torch.equal(out[:, 0], x[:, 0])
    assert torch.equal(out[1, 1:4], prompts.tokens)
    assert torch.equal(out[:, 4:], x[:, 1:])


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [
        ("tokens", (7, D), (3, D)),
        ("attn", (D, 4, 6), (3, D)),
        ("add_mean", (D,), (3, D)),
        ("pad", (3, 8, 9), (3, 52)),
    ],
)
def test_parameters(kind: str, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    """m vectors, the only state; each learns by itself, at the factor given."""
    prompts = Prompts(kind, 3, shape, 0.5, 0.25, generator(0, "prompts"))  # type: ignore[arg-type]
    assert {name: tuple(value.shape) for name, value in prompts.state_dict().items()} == {"tokens": size}
    assert prompts.tokens.lr_factor == 0.25  # type: ignore[attr-defined]
    (prompts(features(2, *shape).float()).pow(2).sum()).backward()
    assert prompts.tokens.grad is not None
    assert len(prompts.tokens.grad.unique(dim=0)) == (1 if kind == "add_mean" else 3)


def test_initial_spread() -> None:
    """N(0, std^2), a function of the generator alone."""
    one, two = make("attn", 50, (400,), 0.02), make("attn", 50, (400,), 0.02)
    assert torch.equal(one.tokens, two.tokens)
    assert one.tokens.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(one.tokens.mean().item()) < 4 * 0.02 / 20000**0.5
    other = Prompts("attn", 50, (400,), 0.02, 1.0, generator(1, "prompts"))
    assert not torch.equal(one.tokens.float(), other.tokens)


def loss(tokens: Tensor) -> Tensor:
    """Any smooth function of the prompts."""
    return (tokens @ features(D, 4)).sin().prod(1).sum() + (tokens[0] * tokens[-1]).sum()


def score(tokens: Tensor, sign: float = 1.0) -> Tensor:
    """Contributions to ``loss(sign * tokens)``."""
    tokens = tokens.clone().requires_grad_()
    return contributions(tokens, torch.autograd.grad(loss(sign * tokens), tokens)[0])


def test_a_contribution_is_the_loss_by_scale() -> None:
    """(d loss / d eps_k)^T eps_k is the derivative of the loss as prompt k is scaled."""
    tokens = features(3, D)
    scale = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(loss(scale * tokens), scale)[0][:, 0]
    assert torch.allclose(score(tokens), expected, rtol=0, atol=1e-12)
    assert not score(tokens).requires_grad


def test_a_prompts_sign_has_no_say() -> None:
    """A prompt and a loss that reads its opposite contribute as much, and a score is its absolute value."""
    tokens = features(3, D)
    assert torch.allclose(score(-tokens, sign=-1.0), score(tokens), rtol=0, atol=1e-12)
    gradient = features(3, D).flip(0)
    assert torch.equal(contributions(-tokens, gradient).abs(), contributions(tokens, gradient).abs())


@pytest.mark.parametrize("norm", ["none", "max"])
def test_shares(norm: str) -> None:
    """They sum to 1, are positive, and order as the scores do."""
    scores = torch.tensor([0.3, 0.0, 1.2, 0.5], dtype=torch.float64)
    alpha = importance(scores, 0.5, norm)
    assert alpha.sum().item() == pytest.approx(1, abs=1e-12)
    assert (alpha > 0).all()
    assert torch.equal(alpha.argsort(), scores.argsort())


def test_shares_in_numbers() -> None:
    """exp(c / tau) / sum: c = 0 and tau ln 3 give 1/4 and 3/4; by the largest, the scale of c has no say."""
    scores = torch.tensor(
        [0.0, 0.5 * torch.tensor(3.0, dtype=torch.float64).log().item()], dtype=torch.float64
    )
    assert importance(scores, 0.5).tolist() == pytest.approx([0.25, 0.75])
    exponent = torch.tensor([0.0, 2.0], dtype=torch.float64).softmax(0).tolist()
    for scale in (1e-6, 1.0, 1e6):
        assert importance(scale * scores, 0.5, "max").tolist() == pytest.approx(exponent)


@pytest.mark.parametrize("norm", ["none", "max"])
def test_equal_scores_give_the_mean(norm: str) -> None:
    """Zero scores, those before the first round, included."""
    tokens = features(3, D)
    for value in (0.0, 0.7):
        alpha = importance(torch.full((3,), value, dtype=torch.float64), 0.5, norm)
        assert torch.allclose(descriptor(tokens, alpha), tokens.mean(0), rtol=0, atol=1e-12)


def test_a_cold_softmax_picks_the_strongest() -> None:
    tokens, scores = features(3, D), torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    assert torch.allclose(descriptor(tokens, importance(scores, 1e-4)), tokens[1], rtol=0, atol=1e-12)


def test_a_lone_prompt_is_its_own_descriptor() -> None:
    tokens = features(1, D).requires_grad_()
    found = descriptor(tokens, importance(torch.tensor([0.4], dtype=torch.float64), 0.5))
    assert torch.equal(found, tokens.detach()[0])
    assert not found.requires_grad
