"""What stands where a BatchNorm stood, and which keys are its statistics."""

import pytest
import torch
from torch import nn

from rayfl.models import (
    ModelConfig,
    build,
    group_norm,
    has_batch_norm,
    is_norm_buffer,
    replace_batch_norm,
    use_batch_stats,
)

SHAPE = (3, 16, 16)


def make(name: str, **options: str | int) -> nn.Sequential:
    return build(ModelConfig(name=name, width=0.125, **options), SHAPE, 10, 0)


@pytest.mark.parametrize(("name", "layers"), [("cnn", 2), ("resnet18", 20)])
@pytest.mark.parametrize("bn", ["average", "local"])
def test_batch_norm_keeps_statistics(name: str, layers: int, bn: str) -> None:
    model = make(name, bn=bn)
    assert has_batch_norm(model)
    assert {key for key in model.state_dict() if is_norm_buffer(key)} == {k for k, _ in model.named_buffers()}
    assert len(list(model.buffers())) == 3 * layers


@pytest.mark.parametrize(("name", "layers"), [("cnn", 2), ("resnet18", 20)])
def test_group_norm_replaces_every_batch_norm(name: str, layers: int) -> None:
    model = make(name, norm="group")
    assert not has_batch_norm(model)
    assert not list(model.buffers())
    assert sum(isinstance(layer, nn.GroupNorm) for layer in model.modules()) == layers
    assert [k for k, _ in model.named_parameters()] == [k for k, _ in make(name).named_parameters()]


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_no_norm(name: str) -> None:
    layers = [type(layer) for layer in make(name, norm="none").modules()]
    assert nn.Identity in layers
    assert nn.BatchNorm2d not in layers
    assert nn.GroupNorm not in layers


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_batch_stats_are_the_batchs_in_eval_mode(name: str) -> None:
    model = make(name, bn="batch_stats")
    assert has_batch_norm(model)
    assert not list(model.buffers())
    x = torch.randn(4, *SHAPE)
    assert torch.equal(model.train()(x), model.eval()(x))


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_models_without_norm_layers(name: str) -> None:
    assert not has_batch_norm(make(name))
    assert not list(make(name).buffers())


@pytest.mark.parametrize(
    ("channels", "most", "groups"),
    [(64, 8, 8), (64, 2, 2), (12, 8, 6), (8, 8, 4), (2, 8, 1), (7, 8, 1), (1, 8, 1), (10, 8, 5)],
)
def test_group_count(channels: int, most: int, groups: int) -> None:
    assert group_norm(channels, most).num_groups == groups


def test_group_count_from_the_config() -> None:
    assert make("cnn", norm="group", norm_groups=1).conv2[1].num_groups == 1


def test_replacing_keeps_weights_and_mode() -> None:
    old = nn.BatchNorm2d(8, eps=0.5).double()
    nn.init.normal_(old.weight)
    plain = nn.BatchNorm1d(6, affine=False)
    model = replace_batch_norm(nn.Sequential(old, nn.Sequential(plain)).eval(), max_groups=2)
    first, second = model[0], model[1][0]
    assert isinstance(first, nn.GroupNorm)
    assert (first.num_groups, first.eps, first.training) == (2, 0.5, False)
    assert first.weight is old.weight
    assert first.bias is old.bias
    assert isinstance(second, nn.GroupNorm)
    assert second.weight is None
    assert isinstance(replace_batch_norm(nn.BatchNorm2d(4)), nn.GroupNorm)


def test_dropping_statistics_equals_building_without() -> None:
    model, expected = make("resnet18"), make("resnet18", bn="batch_stats")
    use_batch_stats(model)
    assert list(model.state_dict()) == list(expected.state_dict())
    assert not any(getattr(layer, "track_running_stats", False) for layer in model.modules())
    x = torch.randn(4, *SHAPE)
    assert torch.equal(model.eval()(x), expected.eval()(x))


def test_norm_buffer_names() -> None:
    assert is_norm_buffer("layer1_0.bn1.running_mean")
    assert is_norm_buffer("num_batches_tracked")
    assert not is_norm_buffer("layer1_0.bn1.weight")
    assert not is_norm_buffer("running_mean.weight")
