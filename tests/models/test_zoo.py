"""Backbones: sizes known from elsewhere, a reproducible start, no trace left in the caller's torch."""

import hashlib

import pytest
import torch
from samples import FAMILIES
from torch import nn

from rayfl.errors import UserError
from rayfl.models import MODELS, ModelConfig, build

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SMALL = {name: ModelConfig(name=name, width=0.125) for name in MODELS}
CLASSIFIERS = [name for name in FAMILIES if name != "resnet50_unet"]
PINNED = [
    ("mlp", {}, MNIST, "4364fcccd4df9f1c"),
    ("lenet", {}, CIFAR, "884289ee2c409ddc"),
    ("cnn", {}, MNIST, "056164207daa6be6"),
    ("cnn", {"norm": "none"}, CIFAR, "040d700b93bb5b21"),
]


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


@pytest.mark.parametrize(("name", "options", "shape", "sha"), PINNED)
def test_initial_weights_never_change(
    name: str, options: dict[str, str], shape: tuple[int, int, int], sha: str
) -> None:
    """Bit for bit: results of old runs must stay reachable."""
    digest = hashlib.sha256()
    for key, value in build(ModelConfig(name=name, **options), shape, 10, 7).state_dict().items():
        digest.update(key.encode())
        digest.update(value.numpy().tobytes())
    assert digest.hexdigest()[:16] == sha


@pytest.mark.parametrize(
    ("options", "shape", "total"),
    [
        ({}, CIFAR, 165468095264.0853),
        ({"stem": "imagenet", "norm": "group", "width": 0.5}, (3, 64, 64), 14631570369.566017),
    ],
)
def test_initial_weights_of_resnet18_never_change(
    options: dict[str, str], shape: tuple[int, int, int], total: float
) -> None:
    """But for the last bit, which normal draws owe to the processor: the sum of i |w_i|, tensor by tensor."""
    found = 0.0
    for value in build(ModelConfig(name="resnet18", **options), shape, 10, 7).state_dict().values():
        if value.is_floating_point():
            found += float((value.double().abs().flatten() * torch.arange(1, value.numel() + 1)).sum())
    assert found == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("shape", [(1, 12, 12), MNIST, (3, 17, 30)])
def test_logits(name: str, shape: tuple[int, int, int]) -> None:
    model = build(SMALL[name], shape, 7, 0)
    assert model.training
    assert model(torch.randn(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("lenet", "resnet50_unet")])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_eight_by_eight_images(name: str, norm: str) -> None:
    config = ModelConfig(name=name, norm=norm, width=0.125)
    assert build(config, (1, 8, 8), 10, 0)(torch.randn(2, 1, 8, 8)).isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_build_is_a_function_of_its_arguments(name: str) -> None:
    """Every tensor with random values depends on the seed, and on nothing else."""
    first = build(SMALL[name], CIFAR, 10, 5).state_dict()
    torch.manual_seed(99)
    again = build(SMALL[name], CIFAR, 10, 5).state_dict()
    other = build(SMALL[name], CIFAR, 10, 6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key, value in first.items() if len(value.unique()) > 1]
    assert len(drawn) >= 3
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


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


@pytest.mark.parametrize("name", FAMILIES)
def test_no_activation_works_in_place_and_nothing_is_drawn_in_training(name: str) -> None:
    model = build(SMALL[name], CIFAR, 10, 0)
    assert not [layer for layer in model.modules() if getattr(layer, "inplace", False)]
    before = torch.get_rng_state()
    model(torch.zeros(2, *CIFAR))
    assert torch.equal(before, torch.get_rng_state())


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
    with pytest.raises(UserError, match=r"model\.skips counts encoder stages, 0 to 4, got 5: 4 is the full"):
        ModelConfig(skips=5)
    with pytest.raises(UserError, match=r"model\.patch_size must be at least 1 pixel, got 0"):
        ModelConfig(patch_size=0)
    with pytest.raises(
        UserError, match=r"model\.patch_size=64 is larger than the image, 32x32: take at most 32"
    ):
        build(ModelConfig(name="vit_tiny", patch_size=64), CIFAR, 10, 0)
    with pytest.raises(UserError, match="resnet50_unet needs images of at least 32x32, got 28x28"):
        build(ModelConfig(name="resnet50_unet"), MNIST, 10, 0)
    with pytest.raises(UserError, match="alexnet needs images of at least 63x63, got 32x32"):
        build(ModelConfig(name="alexnet", stem="imagenet"), CIFAR, 10, 0)
    with pytest.raises(UserError, match="lenet needs images of at least 12x12, got 8x8"):
        build(ModelConfig(name="lenet"), (1, 8, 8), 10, 0)
    with pytest.raises(UserError, match="at least 1 class, got 0"):
        build(ModelConfig(), MNIST, 0, 0)
    with pytest.raises(UserError, match="input shape"):
        build(ModelConfig(), (28, 28), 10, 0)
