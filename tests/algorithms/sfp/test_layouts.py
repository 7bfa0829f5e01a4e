"""Lesions as six numbers (H-SFP): there, back, and drawn anew."""

import math

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.sfp import layouts
from rayfl.algorithms.sfp.layouts import Layouts
from rayfl.messages import weigh

SIZES = [(64, 64), (48, 64), (33, 47), (224, 224)]


def numbers(x: float, y: float, longer: float, shorter: float, angle: float) -> Tensor:
    """[1, 6] of an ellipse."""
    row = (x, y, math.log(longer), math.log(shorter), math.cos(2 * angle), math.sin(2 * angle))
    return torch.tensor([row], dtype=torch.float64)


def ellipse(
    x: float, y: float, longer: float, shorter: float, angle: float = 0.0, size: layouts.Size = (64, 64)
) -> Tensor:
    """[1, H, W], by testing pixel after pixel."""
    mask = torch.zeros(1, *size, dtype=torch.uint8)
    for row in range(size[0]):
        for column in range(size[1]):
            across, down = (column + 0.5) / size[1] - x, (row + 0.5) / size[0] - y
            turned = complex(across, down) * complex(math.cos(angle), -math.sin(angle))
            mask[0, row, column] = (turned.real / longer) ** 2 + (turned.imag / shorter) ** 2 <= 1
    return mask


def there_and_back(mask: Tensor) -> float:
    """Intersection over union of a mask and its ellipse."""
    again = layouts.ellipses(layouts.measure(mask)[0], (mask.shape[1], mask.shape[2]))
    return ((mask & again).sum() / (mask | again).sum()).item()


def population(count: int) -> Tensor:
    """[count, 32, 32] of lesions that vary; every fourth image is empty."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.tensor([0.08, 0.06, 0.15, 0.1, 0.1, 0.1])
    drawn = numbers(0.45, 0.55, 0.3, 0.15, 0.6) + spread * torch.randn(count, 6, generator=generator)
    masks = layouts.ellipses(drawn, (32, 32))
    masks[::4] = 0
    return masks


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("angle", [0.0, 0.4, math.pi / 4, 1.2, math.pi / 2, 2.5])
def test_an_ellipse_is_found_again(size: layouts.Size, angle: float) -> None:
    """Its numbers up to the raster's coarseness, and its pixels."""
    mask = ellipse(0.45, 0.55, 0.3, 0.15, angle, size)
    found, present = layouts.measure(mask)
    assert present.tolist() == [1]
    assert torch.allclose(found, numbers(0.45, 0.55, 0.3, 0.15, angle), atol=0.05)
    assert there_and_back(mask) > 0.95


@pytest.mark.parametrize("sides", [(10, 4), (3, 12), (1, 6), (5, 5)])
def test_numbers_of_a_rectangle(sides: tuple[int, int]) -> None:
    """In closed form: the variance of a side of length l is l^2/12, a semi-axis two deviations."""
    height, width = sides
    mask = torch.zeros(1, 16, 16, dtype=torch.uint8)
    mask[0, 2 : 2 + height, 3 : 3 + width] = 1
    axes = [math.log(2 * side / 16 / math.sqrt(12)) for side in (max(sides), min(sides))]
    direction = [0.0 if height == width else 1.0 if width > height else -1.0, 0.0]
    expected = [(3 + width / 2) / 16, (2 + height / 2) / 16, *axes, *direction]
    found, _ = layouts.measure(mask)
    assert torch.allclose(found, found.new_tensor([expected]), rtol=0, atol=1e-12)


def test_resolution_has_no_say() -> None:
    """The same area in more and smaller pixels has the same numbers, whatever the sides' ratio."""
    masks = population(8)
    finer = masks.repeat_interleave(2, 1).repeat_interleave(3, 2)
    for found, expected in zip(layouts.measure(finer), layouts.measure(masks), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)


def test_a_mirror_turns_the_angle_alone() -> None:
    """y of the centre and the sine change their signs, about the middle and about 0."""
    masks = population(8)
    found, expected = layouts.measure(masks.flip(1))[0], layouts.measure(masks)[0].clone()
    expected[1::4, 1], expected[2::4, 1], expected[3::4, 1] = (1 - expected[i::4, 1] for i in (1, 2, 3))
    expected[:, 5] *= -1
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", [64, 47, 30])
def test_a_circle_has_no_direction(side: int) -> None:
    """Nor one of rounding errors."""
    mask = ellipse(0.5, 0.5, 0.3, 0.3, size=(side, side))
    found, _ = layouts.measure(mask)
    assert found[0, 4:].tolist() == [0, 0]
    assert found[0, 2].item() == pytest.approx(found[0, 3].item(), abs=1e-9)
    assert there_and_back(mask) > 0.98


@pytest.mark.parametrize("size", [(16, 16), (33, 47)])
def test_a_lone_pixel_comes_back(size: layouts.Size) -> None:
    for row, column in ((0, 0), (7, 3), (size[0] - 1, size[1] - 1)):
        mask = torch.zeros(1, *size, dtype=torch.uint8)
        mask[0, row, column] = 1
        assert there_and_back(mask) == 1


def test_a_lesion_over_the_whole_image() -> None:
    """Its ellipse leaves out corners, by area 1 - .927."""
    mask = torch.ones(1, 64, 64, dtype=torch.uint8)
    assert there_and_back(mask) == pytest.approx(0.927, abs=2e-3)


def test_cut_at_the_border() -> None:
    """Half a disc: its own centroid, 4r / (3 pi) from the border, not the disc's; an ellipse near to it."""
    mask = ellipse(0.0, 0.5, 0.3, 0.3)
    assert layouts.measure(mask)[0][0, 0].item() == pytest.approx(4 * 0.3 / (3 * math.pi), abs=5e-3)
    assert there_and_back(mask) > 0.85
    assert there_and_back(ellipse(0.1, 0.5, 0.3, 0.2, 0.4)) > 0.85


def test_empty_masks_are_counted_apart() -> None:
    """They add nothing to the moments, which are those of the others' numbers; nor do other labels."""
    masks = population(12)
    found = layouts.take([masks])
    assert (found.lesions, found.empty) == (9, 3)
    rows = layouts.measure(masks[masks.bool().flatten(1).any(1)])[0]
    assert torch.allclose(found.mean.double(), rows.mean(0), atol=1e-6)
    assert torch.allclose(found.variance.double(), rows.var(0, correction=0), atol=1e-6)
    assert layouts.take([masks * 2]).empty == 12


@pytest.mark.parametrize("sizes", [[20], [1] * 20, [1, 7, 12], [8, 1, 11]])
def test_joined_is_as_taken_at_once(sizes: list[int]) -> None:
    """Over batches and over places, one of them with an empty mask alone."""
    masks = population(20)
    whole = layouts.take([masks])
    joined = layouts.join(layouts.take([part]) for part in masks.split(sizes))
    for found in (joined, layouts.take(masks.split(sizes))):
        assert (found.lesions, found.empty) == (15, 5)
        assert torch.allclose(found.mean, whole.mean, atol=1e-6)
        assert torch.allclose(found.variance, whole.variance, atol=1e-6)
        assert found.mean.dtype == torch.float32


def test_no_lesion_anywhere() -> None:
    """Nothing is sent but counts, and all that is drawn is empty."""
    nothing = layouts.take([torch.zeros(3, 8, 8, dtype=torch.uint8)])
    both = layouts.join([nothing, nothing])
    assert (both.lesions, both.empty, both.mean.numel(), both.variance.numel()) == (0, 6, 0, 0)
    assert not layouts.draw(both, 5, (8, 8), torch.Generator()).any()


def test_kinds_of_message() -> None:
    """12 floats and two counts."""
    assert dict(weigh(layouts.take([population(8)]))) == {"counts": 16, "moments": 48}
    assert dict(weigh(layouts.take([population(1)]))) == {"counts": 16}


def test_what_is_drawn_is_like_what_was_seen() -> None:
    """The share of empty masks, and the moments of the others; seeded draws repeat.

    A direction drawn has some length, one measured is of length 1: its spread is along the circle alone.
    """
    seen = layouts.take([population(400)])
    masks = layouts.draw(seen, 1000, (32, 32), torch.Generator().manual_seed(2))
    drawn = layouts.take([masks])
    assert masks.dtype == torch.uint8
    assert drawn.empty / 1000 == pytest.approx(0.25, abs=0.05)
    assert torch.allclose(drawn.mean, seen.mean, atol=0.04)
    assert torch.allclose(drawn.variance[:4].sqrt(), seen.variance[:4].sqrt(), rtol=0.1)
    again = layouts.draw(seen, 1000, (32, 32), torch.Generator().manual_seed(2))
    assert torch.equal(masks, again)


def test_without_spread_the_mean_is_drawn() -> None:
    one = ellipse(0.4, 0.6, 0.3, 0.2, 0.5)
    drawn = layouts.draw(layouts.take([one]), 3, (64, 64), torch.Generator())
    overlap = (drawn & one).sum((1, 2)) / (drawn | one).sum((1, 2))
    assert overlap.min() > 0.95
    assert torch.equal(drawn[0], drawn[2])


def test_a_lesion_has_a_pixel_at_least() -> None:
    """However small, and wherever its centre was drawn."""
    variance = torch.tensor([4.0, 4.0, 0.0, 0.0, 1.0, 1.0])
    tiny = Layouts(10, 0, torch.tensor([0.5, 0.5, -9.0, -9.0, 0.0, 0.0]), variance)
    masks = layouts.draw(tiny, 200, (12, 7), torch.Generator().manual_seed(3))
    assert masks.flatten(1).sum(1).tolist() == [1] * 200
    assert masks[:, 0].any()
    assert masks[:, -1].any()
    assert masks[:, :, -1].any()


def test_axes_are_clipped() -> None:
    """To what a mask can have at most: from a corner, not all of the image."""
    huge = layouts.ellipses(torch.tensor([[-5.0, -5.0, 9.0, 9.0, 0.0, 0.0]]), (64, 64))
    assert torch.equal(huge, layouts.ellipses(numbers(0, 0, math.sqrt(2), math.sqrt(2), 0), (64, 64)))
    assert huge.all()
    longest = torch.zeros(1, 64, 64, dtype=torch.uint8)
    longest[0, 0, 0] = longest[0, -1, -1] = 1
    assert layouts.measure(longest)[0][0, 2].item() == pytest.approx(layouts.LONGEST, abs=0.02)
