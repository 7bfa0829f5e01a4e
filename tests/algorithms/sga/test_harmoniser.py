"""FedSGA's projector and head: how they begin, what they compute, and what depth has to do with it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead, embedded, shallowest
from rayfl.seeding import generator

SIZE, Y, DEPTHS = 6, 5, 3


def make(seed: int = 0, **options: Any) -> Harmoniser:
    return Harmoniser(SIZE, Y, DEPTHS, generator(seed, "head"), **options).double()


def pooled(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def std(value: Tensor) -> float:
    return value.detach().pow(2).mean().sqrt().item()


@pytest.mark.parametrize(
    ("plain", "gains", "embedding"),
    [(False, (math.sqrt(2), 1.0), 0.02), (True, (math.sqrt(1 / 3), math.sqrt(1 / 3)), 1.0)],
)
def test_initial_spread(plain: bool, gains: tuple[float, float], embedding: float) -> None:
    """He's before the ReLU, 1 / sqrt(fan_in) behind it, small embeddings; plain, torch's. Biases are zero."""
    head = Harmoniser(
        300, 100, 50, generator(0, "head"), d_hid=200, d_z=100, d_e=60, plain=plain, own_inputs=(100, 90)
    )
    expected = [
        (head.fc1, gains[0], 360),
        (head.fc2, gains[1], 200),
        (head.classifier, math.sqrt(1 / 3), 100),
    ]
    expected += [(layer, math.sqrt(1 / 3), size) for layer, size in zip(head.inputs, (100, 90), strict=True)]
    for layer, gain, fan_in in expected:
        assert isinstance(layer, nn.Linear)
        assert layer.in_features == fan_in
        # 5 standard errors of 6000 draws or more
        assert std(layer.weight) * math.sqrt(fan_in) == pytest.approx(gain, rel=0.05)
        assert not layer.bias.any()
    assert std(head.embedding) == pytest.approx(embedding, rel=0.07)
    assert isinstance(head.norm, nn.Identity if plain else nn.LayerNorm)


def test_sizes_by_default() -> None:
    head = make()
    shapes = [tuple(layer.weight.shape) for layer in (head.fc1, head.fc2, head.classifier)]
    assert shapes == [(256, SIZE + 32), (256, 256), (Y, 256)]
    assert tuple(head.embedding.shape) == (DEPTHS, 32)
    assert head.d_z == 256


def test_same_in_two_builds() -> None:
    one, two, other = make().state_dict(), make().state_dict(), make(seed=1).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    for name in ("embedding", "fc1.weight", "fc2.weight", "classifier.weight"):
        assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("own_inputs", [(), (4, 7, 6)])
def test_formula(depth: int, own_inputs: tuple[int, ...]) -> None:
    """W_2 relu(W_1 [LayerNorm(h); e(p)] + b_1) + b_2, after the depth's own layer where there is one."""
    head = make(d_hid=8, d_z=4, d_e=3, own_inputs=own_inputs)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1)
    h = given = pooled(2, own_inputs[depth - 1] if own_inputs else SIZE)
    if own_inputs:
        layer: Any = head.inputs[depth - 1]
        h = h @ layer.weight.T + layer.bias
    centred = h - h.mean(1, keepdim=True)
    h = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * 1.1 + 0.1
    both = torch.cat([h, head.embedding[depth - 1].repeat(2, 1)], dim=1)
    hidden = (both @ head.fc1.weight.T + head.fc1.bias).clamp(min=0)
    expected = hidden @ head.fc2.weight.T + head.fc2.bias
    assert torch.allclose(head.embed(given, depth), expected, rtol=0, atol=1e-12)
    head.depth.fill_(depth)
    logits = expected @ head.classifier.weight.T + head.classifier.bias
    assert torch.allclose(head(given), logits, rtol=0, atol=1e-12)


def test_depth_enters_by_its_embedding_alone() -> None:
    """With embeddings of zero all depths are alike, bit by bit; as they begin, they aren't."""
    head, h = make(), pooled(2, SIZE)
    assert not torch.equal(head.embed(h, 1), head.embed(h, 3))
    with torch.no_grad():
        head.embedding.zero_()
    assert torch.equal(head.embed(h, 1), head.embed(h, 2))
    assert torch.equal(head.embed(h, 1), head.embed(h, 3))


def test_only_the_own_depth_learns() -> None:
    """A batch of depth 2 gives nothing to the embeddings and input layers of the others."""
    head = make(own_inputs=(4, 7, 6))
    head.embed(pooled(2, 7), 2).pow(2).sum().backward()
    assert head.embedding.grad is not None
    assert head.embedding.grad.abs().sum(1).bool().tolist() == [False, True, False]
    learnt = [layer.weight.grad is not None for layer in head.inputs]
    assert learnt == [False, True, False]


@pytest.mark.parametrize("own_inputs", [(), (4, 7, 6)])
def test_plain_head(own_inputs: tuple[int, ...]) -> None:
    """The backbone's own layer: the same logits at any depth, and what is pooled as Z."""
    classifier = nn.Linear(SIZE, Y).double()
    head = PlainHead(classifier, own_inputs).double()
    assert head.d_z == SIZE
    for depth in (1, 2, 3):
        head.depth.fill_(depth)
        h = given = pooled(2, own_inputs[depth - 1] if own_inputs else SIZE)
        if own_inputs:
            layer: Any = head.inputs[depth - 1]
            h = F.linear(given, layer.weight, layer.bias)
        assert torch.equal(head.embed(given, depth), h)
        assert torch.equal(head(given), classifier(h))


@pytest.mark.parametrize("options", [{}, {"plain": True}, {"own_inputs": (3, 4, 5)}], ids=str)
def test_the_shallowest_embedding_in_another_head(options: dict[str, Any]) -> None:
    """What is sent of a head is all that Z at p_1 takes; the one that receives it stays as it is."""
    head, other = make(0, **options), make(1, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1)
    sent, before = shallowest(head.state_dict()), dict(other.state_dict())
    assert sent["embedding"].shape[0] == 1
    layers = {name.rpartition(".")[0] for name in sent} - {""}
    expected = {"fc1", "fc2", *(() if options.get("plain") else ("norm",))}
    assert layers == expected | ({"inputs.0"} if "own_inputs" in options else set())
    x = pooled(4, 3 if "own_inputs" in options else SIZE)
    assert torch.equal(embedded(other, sent, x), head.embed(x, 1))
    assert not torch.allclose(other.embed(x, 1), head.embed(x, 1))
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("own", [(), (3, 4)])
def test_the_shallowest_embedding_of_a_plain_head(own: tuple[int, ...]) -> None:
    """Its own input layer for p_1, or nothing at all."""
    head, other = (PlainHead(nn.Linear(SIZE, Y), own).double() for _ in range(2))
    sent, x = shallowest(head.state_dict()), pooled(4, own[0] if own else SIZE)
    assert sent.keys() == ({"inputs.0.weight", "inputs.0.bias"} if own else set())
    assert torch.equal(embedded(other, sent, x), head.embed(x, 1))
