"""ResNets: torchvision's networks, and the sizes that papers and reference tables give."""

import pytest
import torch
import torchvision

from rayfl.models import ModelConfig, block_names, build, model_costs, part_costs

pytestmark = pytest.mark.slow

CIFAR = (3, 32, 32)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_with_the_imagenet_stem_it_is_torchvisions(name: str) -> None:
    """Same order of weights, so torchvision's state dict loads by position; then the logits must agree."""
    ours = build(ModelConfig(name=name, stem="imagenet"), (3, 64, 64), 10, 0).eval()
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, num_classes=10).eval()
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)), assign=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_resnet18_starts_as_he_et_al() -> None:
    """Fan-out initialisation: std = sqrt(2 / (9 * 512)) for a convolution of 256 to 512, 1.2 M draws."""
    model = build(ModelConfig(name="resnet18"), CIFAR, 10, 0)
    weight = model.state_dict()["layer4_0.conv1.weight"]
    assert weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=5e-3)


@pytest.mark.parametrize(
    ("stem", "pixels", "stride"),
    [("auto", 64, 1), ("auto", 65, 4), ("imagenet", 32, 4), ("cifar", 96, 1)],
)
def test_stem(stem: str, pixels: int, stride: int) -> None:
    model = build(ModelConfig(name="resnet18", stem=stem, width=0.125), (3, pixels, pixels), 10, 0)
    side = -(-pixels // stride)
    assert model.stem(torch.randn(1, 3, pixels, pixels)).shape == (1, 8, side, side)


@pytest.mark.parametrize(
    ("after", "millions", "giga"),
    [("layer1", 0.150, 0.153), ("layer2", 0.675, 0.287), ("layer3", 2.775, 0.421), ("layer4", 11.17, 0.555)],
)
def test_prefixes_of_cifar_resnet18(after: str, millions: float, giga: float) -> None:
    """FedSGA's prefixes for CIFAR-100; giga multiply-accumulates."""
    costs = model_costs(ModelConfig(name="resnet18"), CIFAR, 100)
    prefix = part_costs(costs, after)[0]
    assert prefix.params / 1e6 == pytest.approx(millions, abs=0.0006 if millions < 9 else 0.006)
    assert prefix.flops / 2e9 == pytest.approx(giga, rel=5e-3)
    assert sum(cost.params for cost in costs) == 11_220_132


def test_resnet50_state_of_ten_classes() -> None:
    """H-SFP's FedAvg row counts 23,581,695 numbers, 53 of them integers: the form for large images."""
    state = build(ModelConfig(name="resnet50", stem="imagenet"), CIFAR, 10, 0).state_dict()
    assert sum(value.numel() for value in state.values()) == 23_581_695
    assert [value.dtype for value in state.values()].count(torch.int64) == 53


@pytest.mark.parametrize(("name", "depths"), [("resnet34", (3, 4, 6, 3)), ("resnet50", (3, 4, 6, 3))])
def test_blocks(name: str, depths: tuple[int, ...]) -> None:
    stages = [f"layer{stage}.{i}" for stage, depth in enumerate(depths, start=1) for i in range(depth)]
    assert block_names(build(ModelConfig(name=name, width=0.125), CIFAR, 10, 0)) == ["stem", *stages, "head"]
