"""Backbones: sizes known from elsewhere, a reproducible start, no trace left in the caller's torch."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet18 as torchvision_resnet18

from rayfl.errors import UserError
from rayfl.models import MODELS, ModelConfig, build

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SMALL = {name: ModelConfig(name=name, width=0.125 if name == "resnet18" else 1.0) for name in MODELS}


def num_params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # cnn: 16 (9) + 2*16, 32 (16*9) + 2*32, 64 (32*5*5 + 1), 10 (64 + 1)
        ("cnn", MNIST, 144 + 32 + 4608 + 64 + 51264 + 650),
        # LeNet-5 with full connections: 6 (25+1), 16 (150+1), 120 (400+1), 84 (120+1), 10 (84+1)
        ("lenet", MNIST, 61_706),
        ("lenet", CIFAR, 62_006),
        # FedAvg's paper, section 3: "199,210 total parameters"
        ("mlp", MNIST, 199_210),
        ("resnet18", CIFAR, 11_173_962),
    ],
)
def test_sizes(name: str, shape: tuple[int, int, int], expected: int) -> None:
    assert num_params(build(ModelConfig(name=name), shape, 10, 0)) == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 12, 12), MNIST, CIFAR, (3, 17, 30)])
def test_logits(name: str, shape: tuple[int, int, int]) -> None:
    model = build(SMALL[name], shape, 7, 0)
    assert model.training
    assert model(torch.randn(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_eight_by_eight_images(name: str, norm: str) -> None:
    config = ModelConfig(name=name, norm=norm, width=0.125)
    assert build(config, (1, 8, 8), 10, 0)(torch.randn(2, 1, 8, 8)).isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_build_is_a_function_of_its_arguments(name: str) -> None:
    first = build(SMALL[name], MNIST, 10, 5).state_dict()
    torch.manual_seed(99)
    again = build(SMALL[name], MNIST, 10, 5).state_dict()
    other = build(SMALL[name], MNIST, 10, 6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first if key.endswith("0.weight"))
    assert not torch.equal(*(next(iter(state.values())) for state in (first, other)))


def test_build_ignores_and_restores_the_callers_torch() -> None:
    expected = build(SMALL["cnn"], MNIST, 10, 5).state_dict()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        before = torch.manual_seed(123).get_state()
        got = build(SMALL["cnn"], MNIST, 10, 5).state_dict()
        assert torch.equal(before, torch.get_rng_state())
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(torch.equal(expected[key], got[key]) for key in expected)


def test_gpu_generators_are_not_reseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    build(SMALL["cnn"], MNIST, 10, 5)
    assert not seeded


def test_resnet18_is_torchvisions() -> None:
    """Same order of weights, so torchvision's state dict loads by position; then the logits must agree."""
    ours = build(ModelConfig(name="resnet18", stem="imagenet"), (3, 64, 64), 10, 0).eval()
    with torch.random.fork_rng():
        theirs = torchvision_resnet18(num_classes=10).eval()
    values = theirs.state_dict().values()
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
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


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_no_activation_works_in_place(name: str, norm: str) -> None:
    model = build(ModelConfig(name=name, norm=norm, width=0.125), CIFAR, 10, 0)
    assert not [layer for layer in model.modules() if getattr(layer, "inplace", False)]


def test_conv_has_a_bias_only_without_norm() -> None:
    assert build(ModelConfig(norm="none"), MNIST, 10, 0).conv1[0].bias is not None
    assert build(ModelConfig(), MNIST, 10, 0).conv1[0].bias is None


def test_errors_say_what_to_do() -> None:
    with pytest.raises(UserError, match="unknown model 'resnet81': did you mean 'resnet18'"):
        build(ModelConfig(name="resnet81"), CIFAR, 10, 0)
    with pytest.raises(UserError, match=r"unknown model\.norm 'grup': did you mean 'group'"):
        ModelConfig(norm="grup")
    with pytest.raises(UserError, match=r"unknown model\.bn 'batchstats': did you mean 'batch_stats'"):
        ModelConfig(bn="batchstats")
    with pytest.raises(UserError, match="width"):
        ModelConfig(width=0.0)
    with pytest.raises(UserError, match="norm_groups"):
        ModelConfig(norm_groups=0)
    with pytest.raises(UserError, match="lenet needs images of at least 12x12, got 8x8"):
        build(ModelConfig(name="lenet"), (1, 8, 8), 10, 0)
    with pytest.raises(UserError, match="at least 1 class, got 0"):
        build(ModelConfig(), MNIST, 0, 0)
    with pytest.raises(UserError, match="input shape"):
        build(ModelConfig(), (28, 28), 10, 0)
