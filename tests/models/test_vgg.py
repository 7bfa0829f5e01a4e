"""VGG: torchvision's network for large images, a single linear layer on top for small ones."""

import pytest
import torch
from torchvision.models.vgg import cfgs, make_layers, vgg11_bn

from rayfl.models import ModelConfig, block_names, build, model_costs

pytestmark = pytest.mark.slow


def test_for_large_images_it_is_torchvisions() -> None:
    """At 224 px in size, and in what the convolutions make of an image."""
    config = ModelConfig(name="vgg11")
    with torch.device("meta"):
        theirs = vgg11_bn(num_classes=10)
    costs = model_costs(config, (3, 224, 224), 10)
    assert sum(cost.params for cost in costs) == sum(p.numel() for p in theirs.parameters())
    assert sum(cost.buffers for cost in costs) == sum(b.numel() for b in theirs.buffers())
    ours = build(config, (3, 32, 32), 10, 0).eval()
    features = make_layers(cfgs["A"], batch_norm=True).eval()
    values = dict(
        zip([k for k in ours.state_dict() if "conv" in k], features.state_dict().values(), strict=True)
    )
    ours.load_state_dict(values, strict=False)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours[:-1](x), features(x))


@pytest.mark.parametrize(("name", "params"), [("vgg11", 9_231_114), ("vgg16", 14_728_266)])
def test_sizes_for_cifar(name: str, params: int) -> None:
    """With BatchNorm and one layer of 512 x 10: the sizes of the common CIFAR variants."""
    assert sum(cost.params for cost in model_costs(ModelConfig(name=name), (3, 32, 32), 10)) == params


def test_blocks() -> None:
    convolutions = ["conv1.1", "conv2.1", "conv3.1", "conv3.2", "conv4.1", "conv4.2", "conv5.1", "conv5.2"]
    narrow = ModelConfig(name="vgg11", width=0.02)
    assert block_names(build(narrow, (3, 32, 32), 10, 0)) == [*convolutions, "head"]
    assert block_names(build(narrow, (3, 96, 96), 10, 0)) == [*convolutions, "fc1", "fc2", "head"]


def test_starts_as_torchvisions() -> None:
    """Fan-out convolutions (std sqrt(2 / 4608)), linear layers of std 0.01, no bias."""
    model = build(ModelConfig(name="vgg11"), (3, 32, 32), 100, 0)
    assert model.conv5_2[0].weight.std().item() == pytest.approx((2 / 4608) ** 0.5, rel=5e-3)
    assert model.head[2].weight.std().item() == pytest.approx(0.01, rel=2e-2)
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
