"""Features by position (H-SFP for segmentation)."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rayfl.algorithms.sfp import pixels
from rayfl.moments import Moments, join, take


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lesions(seed: int, *shape: int) -> Tensor:
    """Random pixels."""
    return torch.randint(0, 2, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def covered(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """[*size], the share of lesion by adding up the parts of pixels in each cell, one by one."""
    (height, width), shares = mask.shape, torch.zeros(size, dtype=torch.float64)
    for i in range(size[0]):
        for j in range(size[1]):
            top, left = i * height / size[0], j * width / size[1]
            bottom, right = top + height / size[0], left + width / size[1]
            for row in range(height):
                for column in range(width):
                    tall = max(0.0, min(bottom, row + 1) - max(top, row))
                    wide = max(0.0, min(right, column + 1) - max(left, column))
                    shares[i, j] += tall * wide * int(mask[row, column])
    return shares / (height / size[0]) / (width / size[1])


@pytest.mark.parametrize("size", [(4, 4), (2, 8), (1, 1), (3, 5), (5, 7), (8, 8)])
def test_areas(size: tuple[int, int]) -> None:
    """Of masks against shares of area by hand, wherever borders of cells fall; of maps likewise."""
    masks = lesions(1, 3, 8, 8)
    shares = torch.stack([covered(mask, size) for mask in masks])
    found = pixels.shrink(masks, size)
    assert found.dtype == torch.uint8
    assert torch.equal(found, (shares > 0.5 - 1e-9).to(torch.uint8))
    assert torch.allclose(pixels.pool(masks.double()[:, None], size)[:, 0], shares, rtol=0, atol=1e-12)


def test_half_the_area_is_enough() -> None:
    """Exactly: three of six pixels, and half of a pixel that two cells share."""
    mask = torch.tensor([[[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 0]]], dtype=torch.uint8)
    assert pixels.shrink(mask, (1, 2)).tolist() == [[[1, 0]]]
    assert pixels.shrink(torch.tensor([[[0, 1, 0]]], dtype=torch.uint8), (1, 2)).tolist() == [[[0, 0]]]
    assert pixels.shrink(torch.tensor([[[0, 1, 1]]], dtype=torch.uint8), (1, 2)).tolist() == [[[0, 1]]]
    thirds = torch.ones(1, 33, 33, dtype=torch.uint8)
    assert pixels.shrink(thirds, (17, 17)).all()


def test_other_labels_are_no_lesion() -> None:
    assert not pixels.shrink(torch.full((1, 4, 4), 2, dtype=torch.uint8), (2, 2)).any()


def test_pooling_has_a_gradient() -> None:
    """Each position passes its mean on in equal parts."""
    maps = normal(1, 2, 3, 4, 6).requires_grad_()
    pixels.pool(maps, (2, 2)).sum().backward()
    assert maps.grad is not None
    assert torch.allclose(maps.grad, torch.full_like(maps, 1 / 6), rtol=0, atol=1e-12)


def test_positions_are_samples() -> None:
    """Moments of maps and masks are those of the features at positions of each class, in loops."""
    maps, masks = normal(1, 3, 5, 4, 6), lesions(2, 3, 4, 6)
    by_class: dict[int, list[Tensor]] = {0: [], 1: []}
    for i in range(3):
        for row in range(4):
            for column in range(6):
                by_class[int(masks[i, row, column])].append(maps[i, :, row, column])
    features, labels = pixels.by_position(maps, masks)
    assert (features.shape, labels.shape, labels.dtype) == ((72, 5), (72,), torch.int64)
    found = take([(features, labels)])
    for label, rows in by_class.items():
        of_class = torch.stack(rows)
        assert found[label].count == len(rows)
        assert torch.allclose(found[label].mean, of_class.mean(0), rtol=0, atol=1e-12)
        assert torch.allclose(found[label].variance, of_class.var(0, correction=0), rtol=0, atol=1e-12)


def gaussians() -> dict[int, Moments]:
    """Of background and lesion, [3]."""
    return {
        0: Moments(30, normal(3, 3), normal(4, 3).square()),
        1: Moments(10, normal(5, 3), normal(6, 3).square()),
    }


@pytest.mark.parametrize("blur", [False, True])
def test_maps_have_the_moments_they_are_drawn_from(blur: bool) -> None:
    """By class and channel, at borders of images and of lesions as anywhere; eps is added to the variance."""
    known = gaussians()
    masks = torch.zeros(4000, 4, 4, dtype=torch.uint8)
    masks[:, 1:, :2] = 1
    maps = pixels.draw(known, masks, torch.Generator().manual_seed(7), blur, eps=0.5)
    assert maps.shape == (4000, 3, 4, 4)
    for row in range(4):
        for column in range(4):
            moments = known[int(masks[0, row, column])]
            drawn, deviation = maps[:, :, row, column], (moments.variance + 0.5).sqrt()
            assert torch.all((drawn.mean(0) - moments.mean).abs() < 5 * deviation / 4000**0.5)
            assert torch.allclose(drawn.std(0) / deviation, torch.ones_like(deviation), rtol=0, atol=0.06)


def test_no_variance_draws_the_means() -> None:
    """Exactly, each position that of its class; seeded draws repeat and others differ."""
    masks = lesions(8, 2, 4, 5)
    points = {label: Moments(one.count, one.mean, 0 * one.mean) for label, one in gaussians().items()}
    maps = pixels.draw(points, masks, torch.Generator(), eps=0.0)
    for label, one in points.items():
        where = masks == label
        assert torch.equal(maps.movedim(1, -1)[where], one.mean.expand(int(where.sum()), 3))
    drawn = [pixels.draw(gaussians(), masks, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_blur_makes_neighbours_alike() -> None:
    """6 of 9 terms in common; without blur nothing."""
    masks = torch.zeros(2000, 5, 5, dtype=torch.uint8)
    white = {0: Moments(1, torch.zeros(1).double(), torch.ones(1).double())}
    for blur, expected in ((True, 6 / 9), (False, 0.0)):
        maps = pixels.draw(white, masks, torch.Generator().manual_seed(9), blur, eps=0.0)
        alike = (maps[:, 0, 2, 1] * maps[:, 0, 2, 2]).mean().item()
        assert alike == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("seen", [(0,), (1,), (0, 1)])
def test_a_class_never_seen_is_drawn_as_the_others(seen: tuple[int, ...]) -> None:
    """All of them together."""
    known = {label: gaussians()[label] for label in seen}
    masks = torch.full((6000, 1, 1), 2, dtype=torch.uint8)
    maps = pixels.draw(known, masks, torch.Generator().manual_seed(1), eps=0.0)[:, :, 0, 0]
    rest = join(known.values())
    deviation = rest.variance.sqrt()
    assert torch.all((maps.mean(0) - rest.mean).abs() < 5 * deviation / 6000**0.5)
    assert torch.allclose(maps.std(0), deviation, rtol=0.05)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 2), (3, 3), (6, 4)])
def test_blurred_noise_has_unit_variance_at_the_borders(size: tuple[int, int]) -> None:
    """Exactly: blurring is linear, a position's variance the sum of squares of what it takes of each."""
    count = size[0] * size[1]
    impulses = torch.eye(count, dtype=torch.float64).view(count, 1, *size)
    variances = pixels.smooth(impulses).square().sum(0)[0]
    assert torch.allclose(variances, torch.ones(size, dtype=torch.float64), rtol=0, atol=1e-12)


def test_blur_is_a_box() -> None:
    """Inside, nine positions of equal weight; images and channels stay apart."""
    noise = normal(1, 2, 3, 7, 7)
    box = torch.full((3, 1, 3, 3), 1 / 3, dtype=torch.float64)
    expected = functional.conv2d(noise, box, groups=3)
    assert torch.allclose(pixels.smooth(noise)[:, :, 1:-1, 1:-1], expected, rtol=0, atol=1e-12)


def rows(counts: dict[int, int]) -> tuple[Tensor, Tensor]:
    """Features that say what they are, [N, 2]: label and place."""
    labels = torch.tensor([label for label, count in counts.items() for _ in range(count)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    return torch.stack([labels.double(), torch.arange(len(labels)).double()], 1), labels


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ({0: 900, 1: 300}, 256, {0: 128, 1: 128}),
        ({0: 900, 1: 5}, 256, {0: 128, 1: 5}),
        ({0: 900}, 256, {0: 256}),
        ({1: 10}, 256, {1: 10}),
        ({0: 50, 2: 50, 5: 50}, 100, {0: 33, 2: 33, 5: 33}),
    ],
)
def test_classes_are_balanced(counts: dict[int, int], most: int, expected: dict[int, int]) -> None:
    """Each has an equal share or all it has, every position once, with its own label."""
    features, labels = rows(counts)
    found, of = pixels.balanced(features, labels, torch.Generator().manual_seed(2), most)
    assert {label: int((of == label).sum()) for label in of.unique().tolist()} == expected
    assert torch.equal(found[:, 0], of.double())
    assert len(found[:, 1].unique()) == len(found)


def test_positions_are_drawn() -> None:
    """From the generator handed in, and from everywhere."""
    features, labels = rows({0: 40, 1: 40})
    drawn = [pixels.balanced(features, labels, torch.Generator().manual_seed(i), 20)[0] for i in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    met = [pixels.balanced(features, labels, torch.Generator().manual_seed(i), 20)[0] for i in range(40)]
    assert len(torch.cat(met)[:, 1].unique()) == 80


def test_gradients_reach_the_positions_drawn() -> None:
    features, labels = rows({0: 30, 1: 3})
    features.requires_grad_()
    found, _ = pixels.balanced(features, labels, torch.Generator(), 8)
    found.sum().backward()
    assert features.grad is not None
    assert features.grad[:, 1].nonzero()[:, 0].tolist() == sorted(found[:, 1].int().tolist())


def test_no_positions() -> None:
    found, labels = pixels.balanced(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), torch.Generator())
    assert (found.shape, labels.shape) == ((0, 3), (0,))
