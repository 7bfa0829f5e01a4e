"""Augmentation: whose draws they are, what each kind does to images and masks, and what it leaves alone."""

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from photos import apply, federation, photos

from rayfl.data.augment import augmentation, check
from rayfl.data.config import AugmentKind
from rayfl.errors import UserError
from rayfl.host import Host
from rayfl.roles import Client

KINDS: tuple[AugmentKind, ...] = ("crop_flip", "supcon", "randaugment")


@pytest.mark.parametrize("kind", KINDS)
def test_draws_belong_to_seed_round_client_and_step(kind: AugmentKind) -> None:
    """Equal ids give equal bits, on a second call of the same callable too; any other id gives other ones."""
    images = photos()
    change = augmentation(kind, 3, 2, 1, 0)
    assert change is not None
    first = change(images, None)[0]
    assert torch.equal(change(images, None)[0], first)
    assert torch.equal(apply(kind, images, None, 3, 2, 1, 0)[0], first)
    for other in ((4, 2, 1, 0), (3, 3, 1, 0), (3, 2, 2, 0), (3, 2, 1, 1), (3, 1, 2, 0)):
        assert not torch.equal(apply(kind, images, None, *other)[0], first), other


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_elses_generator_or_images_are_touched(kind: AugmentKind) -> None:
    images, before = photos(), photos()
    numpy_state = np.random.get_state
    kept = torch.get_rng_state(), pickle.dumps(numpy_state()), random.getstate()
    apply(kind, images)
    assert torch.equal(torch.get_rng_state(), kept[0])
    assert (pickle.dumps(numpy_state()), random.getstate()) == kept[1:]
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_has_draws_of_its_own(kind: AugmentKind) -> None:
    """Of 32 copies of one image at least half differ from all others."""
    images = photos(1).expand(32, -1, -1, -1).contiguous()
    found = {bytes(image.numpy().tobytes()) for image in apply(kind, images)[0]}
    assert len(found) >= 16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("channels", "height", "width"), [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 20, 33), (1, 1, 1)]
)
def test_shapes_and_bytes_stay(kind: AugmentKind, channels: int, height: int, width: int) -> None:
    images = photos(5, channels, height, width)
    masks = torch.zeros(5, height, width, dtype=torch.uint8)
    new, moved = apply(kind, images, masks)
    rows = 10 if kind == "supcon" else 5
    assert (new.shape, new.dtype) == ((rows, channels, height, width), torch.uint8)
    assert moved is not None
    assert (moved.shape, moved.dtype) == ((rows, height, width), torch.uint8)
    assert apply(kind, images)[1] is None


def test_crop_flip_is_a_window_of_the_padded_image() -> None:
    """Each result is one of the 2 * 9 * 9 windows of the image with 4 zeros around; all offsets and both
    directions occur, every one about equally often (256 draws of 9: 28.4 each, deviation 5)."""
    image = torch.arange(1, 32 * 32 + 1).remainder(255).add(1).byte().view(1, 1, 32, 32)
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))[0, 0]
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[top : top + 32, left : left + 32]
            windows[window.numpy().tobytes()] = (top, left, 0)
            windows[window.flip(-1).contiguous().numpy().tobytes()] = (top, left, 1)
    assert len(windows) == 162
    results = apply("crop_flip", image.expand(256, -1, -1, -1))[0]
    places = np.array([windows[result.numpy().tobytes()] for result in results])
    for axis in (0, 1):
        assert np.bincount(places[:, axis], minlength=9).min() > 28.4 - 4 * 5
    assert 96 < places[:, 2].sum() < 160


def test_crop_flip_pads_in_proportion() -> None:
    """8 pixels move by at most 1, 224 by up to 28: the sum of a white image tells how much is cut off."""
    for side, pad in ((8, 1), (28, 4), (224, 28)):
        white = torch.ones(64, 1, side, side, dtype=torch.uint8)
        kept = apply("crop_flip", white)[0].sum((1, 2, 3)) / side**2
        assert kept.min() >= (1 - pad / side) ** 2
        assert kept.min() < (1 - pad / side / 2) ** 2
        assert kept.max() > 1 - pad / side / 2
    kept = apply("crop_flip", torch.ones(64, 1, 8, 32, dtype=torch.uint8))[0]
    assert kept.amax(3).sum((1, 2)).min() == 8 - 1
    assert kept.amax(2).sum((1, 2)).min() == 32 - 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_moves_with_its_image(kind: AugmentKind) -> None:
    """The mask is the image: two levels, 0 and 1, which no colour operation keeps apart from each other but
    thresholding does. Blocks of 4 pixels, so that a crop to the nearest pixel shifts edges by one at most."""
    draw = torch.Generator().manual_seed(2)
    coarse = torch.randint(2, (24, 1, 8, 8), generator=draw).float()
    masks = torch.nn.functional.interpolate(coarse, scale_factor=4)[:, 0].byte()
    images = masks[:, None] * 200
    new, moved = apply(kind, images, masks)
    assert moved is not None
    assert set(moved.unique().tolist()) == {0, 1}
    low, high = new.amin((1, 2, 3), keepdim=True).float(), new.amax((1, 2, 3), keepdim=True).float()
    agree = (((new.float() - low) / (high - low) > 0.5)[:, 0] == moved.bool()).float().mean((1, 2))
    # Two of the 24 come out of two colour operations in a single colour, which has no shape to compare.
    agree = agree[(high > low).flatten()]
    if kind == "crop_flip":
        assert torch.equal(new[:, 0], moved * 200)
    assert len(agree) >= len(new) - 2
    assert agree.min() > (0.85 if kind == "supcon" else 0.97)
    assert any(not torch.equal(a, b) for a, b in zip(moved, masks, strict=False))


def test_what_cant_be_coloured_is_refused() -> None:
    for kind in ("supcon", "randaugment"):
        with pytest.raises(UserError, match="1 or 3 channels, got 4"):
            check(kind, (4, 8, 8))  # type: ignore[arg-type]
    check("crop_flip", (4, 8, 8))
    check("supcon", (1, 8, 8))
    apply("crop_flip", photos(2, 4, 8, 8))


def test_none_changes_no_bit() -> None:
    """No callable at all: sources that know nothing of augmentation serve as before."""
    assert augmentation("none", 0, 1, 0, 0) is None
    plan = tiny.blueprint("fedavg", model="group")
    client = Client(Host(plan), 0)
    client.receive(client.host.initial("client"), 1)
    for batch, (inputs, labels) in zip(client.batches, tiny.client_batches(plan, 1, 0), strict=True):
        assert torch.equal(batch.inputs, inputs)
        assert torch.equal(batch.labels, labels)


def test_scoring_sees_images_as_they_are() -> None:
    plan = replace(federation("fedavg"), test=federation("fedavg").train)
    scores = []
    for kind in ("none", "crop_flip"):
        client = Client(Host(replace(plan, augment=kind)), 0)
        scores.append(client.score(client.host.initial("client"))[0])
    assert torch.equal(scores[0].predictions, scores[1].predictions)
    assert scores[0].loss == scores[1].loss
