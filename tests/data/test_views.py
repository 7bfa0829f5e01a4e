"""The two views of contrastive losses: their order, their law, and their colours against torchvision's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import apply, photos
from torch import Tensor
from torchvision.transforms.v2 import functional

from rayfl.data import DataConfig, open_dataset
from rayfl.data import views as module
from rayfl.data.augment import augmentation


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs", "factor"),
    [
        (module.brightness, functional.adjust_brightness, 1.3),
        (module.brightness, functional.adjust_brightness, 0.7),
        (module.contrast, functional.adjust_contrast, 1.3),
        (module.contrast, functional.adjust_contrast, 0.7),
        (module.saturation, functional.adjust_saturation, 1.3),
        (module.saturation, functional.adjust_saturation, 0.7),
        (module.hue, functional.adjust_hue, 0.1),
        (module.hue, functional.adjust_hue, -0.1),
    ],
)
def test_colours_change_as_torchvision_changes_them(
    ours: Callable[[Tensor, Tensor], Tensor],
    theirs: Callable[[Tensor, float], Tensor],
    factor: float,
    channels: int,
) -> None:
    """On random, grey, black and white images, each with a factor of its own."""
    if channels == 1 and ours in (module.saturation, module.hue):
        return
    images = torch.rand(4, channels, 9, 7, generator=torch.Generator().manual_seed(0)).double()
    images[1], images[2], images[3] = images[1, :1].clone(), 0, 1
    images = images[[0, 0, 1, 2, 3]]
    factors = [factor, 1.0 if ours is not module.hue else 0.0, factor, factor, factor]
    found = ours(images.clone(), torch.tensor(factors, dtype=torch.float64)[:, None, None, None])
    wanted = torch.stack([theirs(image, one) for image, one in zip(images, factors, strict=True)])
    # Their hue goes through numbers that are good to six digits.
    assert (found - wanted).abs().max() < (1e-6 if ours is module.hue else 1e-12)


def test_two_views_are_two_blocks_of_different_views() -> None:
    """Row i and row b + i come from image i: constant images keep it visible after every crop and flip, and
    colour jitter moves a grey by up to 40 % of itself in brightness; contrast moves a constant not at all."""
    values = torch.tensor([10, 40, 100], dtype=torch.uint8)
    images = values.view(3, 1, 1, 1).expand(-1, 3, 16, 16).contiguous()
    views = apply("supcon", images)[0].float()
    assert torch.allclose(views.mean((1, 2, 3)) / values.repeat(2), torch.ones(6), atol=0.45)
    textured, places = apply("supcon", photos(8), photos(8, 1)[:, 0])
    assert places is not None
    assert all(not torch.equal(textured[i], textured[8 + i]) for i in range(8))
    assert all(not torch.equal(places[i], places[8 + i]) for i in range(8)), "the same crop twice"


def test_labels_follow_the_two_views(tmp_path: Path) -> None:
    train, _ = open_dataset(DataConfig(name="digits", root=str(tmp_path)))
    rows = np.arange(5)
    inputs, labels = train.batch(rows, augment=augmentation("supcon", 0, 1, 0, 0))
    assert inputs.shape == (10, 1, 8, 8)
    assert labels.tolist() == [*train.labels[rows], *train.labels[rows]]


def test_views_are_drawn_as_specified() -> None:
    """Grey in 0.2 of 800 views, 0.5 flipped, no jitter in 0.2; areas of the crop between 0.5 and 1.

    A colour ramp shows all of it: blue, constant but for jitter; red rises to the right, green downwards."""
    ramp = torch.arange(32, dtype=torch.float32) * 6
    image = torch.stack(
        [ramp.expand(32, 32), ramp[:, None].expand(32, 32), torch.full((32, 32), 90.0)]
    ).byte()
    views = apply("supcon", image.expand(400, -1, -1, -1))[0].float()
    grey = (views[:, 0] == views[:, 1]).flatten(1).all(1) & (views[:, 1] == views[:, 2]).flatten(1).all(1)
    assert 800 * 0.2 - 45 < grey.sum() < 800 * 0.2 + 45
    still = (views[:, 2] == 90).flatten(1).all(1)
    assert 800 * 0.16 - 45 < still.sum() < 800 * 0.16 + 45
    plain = views[still]
    right = plain[:, 0, :, -1].mean(1) - plain[:, 0, :, 0].mean(1)
    assert 0.3 < (right < 0).float().mean() < 0.7
    across = right.abs() / (6 * 31)
    down = (plain[:, 1, -1].mean(1) - plain[:, 1, 0].mean(1)) / (6 * 31)
    area = across * down
    assert area.min() > 0.42
    assert area.max() > 0.9
    assert area.min() < 0.6
    assert (across / down).min() < 0.85
    assert (across / down).max() > 1.15


def test_grey_images_keep_one_channel_and_still_change_in_brightness() -> None:
    images = torch.full((64, 1, 8, 8), 100, dtype=torch.uint8)
    values = apply("supcon", images)[0].flatten(1)
    assert values.amin() < 75
    assert values.amax() > 125
