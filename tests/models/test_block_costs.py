"""Costs: published sizes, agreement with a real pass, and a model left as it was."""

import time

import pytest
import torch
from samples import FAMILIES, inputs, make, shape
from torch import nn

from rayfl.errors import UserError
from rayfl.models import (
    ModelConfig,
    block_costs,
    block_names,
    build,
    cut,
    legal_cuts,
    model_costs,
    part_costs,
)

pytestmark = pytest.mark.slow

CIFAR = (3, 32, 32)
RESNET = ModelConfig(name="resnet18")


@pytest.mark.parametrize(
    ("after", "elements", "params", "share"),
    [
        ("stem", 65_536, 1_856, 0.3),
        ("layer1", 65_536, 149_824, 27.5),
        ("layer2", 32_768, 675_392, 51.7),
        ("layer3", 16_384, 2_775_104, 75.8),
        ("layer4", 8_192, 11_168_832, 100.0),
    ],
)
def test_cifar_resnet18_at_each_cut(after: str, elements: int, params: int, share: float) -> None:
    """Reference sizes for 10 classes; the share is of the forward multiply-accumulates, in percent."""
    costs = model_costs(RESNET, CIFAR, 10)
    (whole,), (client, server) = part_costs(costs), part_costs(costs, after)
    assert client.output_elements == elements
    assert client.params == params
    assert client.param_bytes == 4 * params
    assert round(100 * client.flops / whole.flops, 1) == share
    assert client.flops + server.flops == whole.flops
    assert client.params + server.params == whole.params == 11_173_962
    assert server.output_shape == (10,)


def test_cifar_resnet18_in_total() -> None:
    (whole,) = part_costs(model_costs(RESNET, CIFAR, 10))
    assert round(whole.flops / 2 / 1e6, 1) == 555.4
    # 2 C + 1 for each BatchNorm: 5 of 64 channels, 5 of 128, 256 and 512 each
    assert whole.buffers == 2 * 5 * (64 + 128 + 256 + 512) + 20
    assert whole.buffer_bytes == 4 * 2 * 5 * (64 + 128 + 256 + 512) + 8 * 20


@pytest.mark.parametrize(
    ("pixels", "after", "shape"),
    [(32, "layer2", (128, 4, 4)), (64, "layer1.0", (64, 16, 16)), (224, "layer4", (512, 7, 7))],
)
def test_imagenet_stem(pixels: int, after: str, shape: tuple[int, ...]) -> None:
    """FSL-SAGE's CIFAR setting, SplitFed's HAM10000 setting, and the network of the ResNet paper."""
    costs = model_costs(ModelConfig(name="resnet18", stem="imagenet"), (3, pixels, pixels), 10)
    assert part_costs(costs, after)[0].output_shape == shape


def test_cnn_by_hand() -> None:
    """2 FLOPs per multiply-accumulate: outputs x inputs per output."""
    costs = model_costs(ModelConfig(), (1, 28, 28), 10)
    assert [cost.flops for cost in costs] == [
        2 * (16 * 28 * 28) * 9,
        2 * (32 * 14 * 14) * (16 * 9),
        2 * 64 * (32 * 5 * 5),
        2 * 10 * 64,
    ]
    assert [cost.output_shape for cost in costs] == [(16, 14, 14), (32, 5, 5), (64,), (10,)]
    assert [cost.name for cost in costs] == ["conv1", "conv2", "fc1", "head"]
    assert [cost.name for cost in part_costs(costs, "conv1")] == ["conv1", "conv2..head"]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in FAMILIES if name != "resnet50"]
    + [
        (name, options)
        for name in ("cnn", "resnet18")
        for options in ({"norm": "group"}, {"bn": "batch_stats"})
    ],
)
def test_costs_agree_with_a_real_pass(name: str, options: dict[str, str]) -> None:
    config, image, x = ModelConfig(name=name, width=0.125, **options), shape(name), inputs(name)
    model = make(name, **options)
    costs = block_costs(model, image)
    for cost, block in zip(costs, model, strict=True):
        x = block(x)
        assert cost.output_shape == tuple(x.shape[1:])
        assert cost.params == sum(p.numel() for p in block.parameters())
        assert cost.param_bytes == 8 * cost.params
        assert cost.buffers == sum(b.numel() for b in block.buffers())
        assert cost.buffer_bytes == sum(b.numel() * b.element_size() for b in block.buffers())
        assert cost.output_elements == x[0].numel()
    single = model_costs(config, image, 10)
    assert [(c.name, c.params, c.flops) for c in single] == [(c.name, c.params, c.flops) for c in costs]


@pytest.mark.parametrize("after", legal_cuts(build(ModelConfig(), CIFAR, 10, 0)))
def test_parts_follow_cut(after: str) -> None:
    model = build(ModelConfig(), CIFAR, 10, 0)
    for cost, part in zip(part_costs(block_costs(model, CIFAR), after), cut(model, after), strict=True):
        assert cost.params == sum(p.numel() for p in part.parameters())
    with pytest.raises(UserError, match="cut after one of conv1, conv2, fc1"):
        part_costs(block_costs(model, CIFAR), "cnov1")


def test_the_model_is_left_as_it_was() -> None:
    model = build(ModelConfig(), CIFAR, 10, 0)
    model.conv1.eval()
    model.head.weight.requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [layer.training for layer in model.modules()]
    storage = [p.data_ptr() for p in model.parameters()]
    rng = torch.get_rng_state()
    block_costs(model, CIFAR)
    model_costs.cache_clear()
    model_costs(ModelConfig(), CIFAR, 10)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert modes == [layer.training for layer in model.modules()]
    assert storage == [p.data_ptr() for p in model.parameters()]
    assert [p.requires_grad for p in model.parameters()].count(False) == 1
    assert torch.equal(rng, torch.get_rng_state())


def test_sizes_do_not_depend_on_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model_costs.cache_clear()
        (whole,) = part_costs(model_costs(ModelConfig(), CIFAR, 10))
    finally:
        torch.set_default_dtype(torch.float32)
        model_costs.cache_clear()
    assert whole.param_bytes == 4 * whole.params


def test_a_model_of_plain_numbered_blocks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    flat, linear = block_costs(model, (3, 2, 2))
    assert block_names(model) == ["0", "1"]
    assert (flat.params, flat.flops, flat.output_shape) == (0, 0, (12,))
    assert (linear.params, linear.flops) == (65, 120)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x[:, :2]


class Sum(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1].sum(1, keepdim=True)


def test_a_tuple_across_the_cut() -> None:
    """Elements of both tensors count as smashed data."""
    costs = block_costs(nn.Sequential(nn.Linear(4, 3), Pair(), Sum()), (4,))
    assert [cost.output_shape for cost in costs] == [(3,), ((3,), (2,)), (3,)]
    assert [cost.output_elements for cost in part_costs(costs, 2)] == [5, 3]


class HalvesInTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, ::2] if self.training else x


def test_costs_are_those_of_eval_mode() -> None:
    (cost,) = block_costs(nn.Sequential(HalvesInTraining()).train(), (8,))
    assert cost.output_shape == (8,)


def test_costs_are_quick_and_remembered() -> None:
    """A sweep asks for them per cell; about 20 ms for cnn, so the bound leaves room for a busy machine."""
    model = build(ModelConfig(), CIFAR, 10, 0)
    durations = []
    for _ in range(10):
        start = time.process_time()
        block_costs(model, CIFAR)
        durations.append(time.process_time() - start)
    assert min(durations) < 0.05
    assert model_costs(RESNET, CIFAR, 10) is model_costs(RESNET, CIFAR, 10)
