"""Class-wise moments: of a union, in any order and any tree, they are those of all features at once."""

import itertools

import torch

from rayfl.moments import Moments, join, take


def pieces(*sizes: int) -> list[torch.Tensor]:
    """Features [n, 3, 2] far from zero, where E[x^2] - E[x]^2 has no digits left."""
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(n, 3, 2, generator=draw, dtype=torch.float64) * (i + 1) + 1e4 + i
        for i, n in enumerate(sizes)
    ]


def of(features: torch.Tensor) -> Moments:
    """By definition."""
    mean = features.mean(0)
    return Moments(len(features), mean, (features - mean).square().mean(0))


def agree(one: Moments, other: Moments) -> bool:
    """To 1e-10 of numbers about 1e4."""
    apart = max((one.mean - other.mean).abs().max(), (one.variance - other.variance).abs().max())
    return one.count == other.count and apart.item() < 1e-10 * 1e4


def test_the_union_in_any_order_and_tree() -> None:
    """Places of one sample among them: their variance is 0, legally."""
    some = pieces(5, 1, 8, 3)
    wanted = of(torch.cat(some))
    single = of(some[1])
    assert single.variance.abs().max() == 0
    for order in itertools.permutations(map(of, some)):
        assert agree(join(order), wanted)
        assert agree(join([join(order[:2]), join(order[2:])]), wanted)
        assert agree(join([order[0], join(order[1:])]), wanted)


def test_in_one_pass_by_class() -> None:
    """Whatever the batches; classes in order, absent ones absent."""
    features = torch.cat(pieces(20))
    labels = torch.tensor([4, 0, 2, 0] * 5)
    for size in (1, 3, 20):
        found = take(zip(features.split(size), labels.split(size), strict=True))
        assert list(found) == [0, 2, 4]
        assert all(agree(found[label], of(features[labels == label])) for label in found)
    assert take([]) == {}


def test_half_precision_is_left_before_squares() -> None:
    """Squares of 500 overflow in float16."""
    found = take([(torch.full((2, 1), 500.0, dtype=torch.float16), torch.tensor([0, 0]))])
    assert found[0].mean.dtype == torch.float32
    assert found[0].variance.item() == 0


def test_no_graph_is_kept() -> None:
    features = torch.ones(2, 3, requires_grad=True)
    assert not take([(features * 2, torch.tensor([0, 0]))])[0].mean.requires_grad
