"""MobileNetV3-Small: torchvision's network, laid out in blocks."""

import pytest
import torch
from torchvision.models import mobilenet_v3_small

from rayfl.models import ModelConfig, block_names, build

pytestmark = pytest.mark.slow


def test_for_large_images_it_is_torchvisions() -> None:
    ours = build(ModelConfig(name="mobilenet_v3_small", stem="imagenet"), (3, 64, 64), 10, 0).eval()
    with torch.device("meta"):
        theirs = mobilenet_v3_small(num_classes=10).eval()
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)), assign=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_blocks() -> None:
    depths = enumerate((1, 2, 5, 3), start=1)
    stages = [f"layer{stage}.{i}" for stage, depth in depths for i in range(depth)]
    model = build(ModelConfig(name="mobilenet_v3_small", width=0.25), (3, 32, 32), 10, 0)
    assert block_names(model) == ["stem", *stages, "last", "head"]


@pytest.mark.parametrize(
    ("channels", "pixels", "side"), [(1, 32, 32), (3, 64, 64), (1, 65, 33), (3, 224, 112)]
)
def test_stem(channels: int, pixels: int, side: int) -> None:
    """Stride 1 up to 64 px, 2 above; any number of channels."""
    model = build(ModelConfig(name="mobilenet_v3_small", width=0.25), (channels, pixels, pixels), 10, 0)
    assert model.stem(torch.zeros(1, channels, pixels, pixels)).shape[2:] == (side, side)
