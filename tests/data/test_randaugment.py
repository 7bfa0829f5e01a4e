"""RandAugment against torchvision's own."""

import pytest
import torch
from photos import apply, photos
from torch import Tensor
from torchvision.transforms import v2

from rayfl.data.randaugment import rand_augment
from rayfl.seeding import numpy_generator


def outcomes(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("channels", [1, 3])
def test_single_operations_are_torchvisions_to_the_bit(channels: int) -> None:
    """All outcomes of 400 draws each from one image: the identity, 9 operations of either sign (8 on grey,
    where saturation is another identity) and 4 without. The rarest are drawn once in 28: none is missing."""
    image = photos(1, channels, 24, 20)
    reference = v2.RandAugment(num_ops=1, magnitude=9)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        wanted = outcomes(torch.cat([reference(image) for _ in range(400)]))
    rng = numpy_generator(0, "test")
    found = outcomes(rand_augment(rng, image.expand(400, -1, -1, -1), None, num_ops=1)[0])
    assert len(wanted) == (23 if channels == 3 else 21)
    assert found == wanted


def test_by_default_there_are_two() -> None:
    """The second works on what the first has made, so there is more to see than single operations."""
    image, rng = photos(1, 3, 24, 20), numpy_generator(0, "test")
    once = rand_augment(rng, image.expand(400, -1, -1, -1), None, num_ops=1)[0]
    twice = outcomes(apply("randaugment", image.expand(400, -1, -1, -1))[0])
    again = rand_augment(rng, once, None, num_ops=1)[0]
    assert len(twice) > 100
    assert len(twice & outcomes(again)) > 50
