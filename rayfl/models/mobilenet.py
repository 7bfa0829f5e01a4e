"""MobileNetV3-Small, taken from torchvision whole and laid out in blocks.

Departs from torchvision: no dropout, since its draws would depend on who computes what; BatchNorm's running
statistics move by PyTorch's 0.1 a step instead of 0.01, as a client makes few steps a round. The stem has
stride 1 for small images. ``norm="none"`` leaves the convolutions without a bias too.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, cifar_stem
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer

_STAGES = (1, 2, 5, 3)
"""Inverted residuals at each resolution."""


def mobilenet_v3_small(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """MobileNetV3-Small (Howard et al., 2019, https://arxiv.org/abs/1905.02244); channels in steps of 8."""
    from torchvision.models import mobilenet_v3_small as torchvisions

    at_least(8, input_shape, config)
    whole = torchvisions(
        num_classes=num_classes, width_mult=config.width, norm_layer=_norm(config), dropout=0.0
    )
    stem, *residuals, last = whole.features
    first = stem[0]
    stride = 1 if cifar_stem(config, input_shape) else 2
    if input_shape[0] != first.in_channels or stride != 2:
        stem[0] = nn.Conv2d(input_shape[0], first.out_channels, 3, stride, padding=1, bias=False)
        nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")
    blocks: dict[str, list[nn.Module]] = {"stem": [stem]}
    upstream = {
        "stem": "features.0",
        "last": "features.12",
        "head.2": "classifier.0",
        "head.4": "classifier.3",
    }
    remaining = iter(enumerate(residuals, start=1))
    for stage, depth in enumerate(_STAGES, start=1):
        for index in range(depth):
            place, block = next(remaining)
            blocks[f"layer{stage}_{index}"] = [block]
            upstream[f"layer{stage}_{index}"] = f"features.{place}"
    hidden, activation, _, output = whole.classifier
    blocks["last"] = [last]
    blocks["head"] = [whole.avgpool, nn.Flatten(), hidden, activation, output]
    return backbone(blocks, upstream=upstream, task=["head.4"])


def _norm(config: ModelConfig) -> Callable[[int], nn.Module]:
    """torchvision's BatchNorm has another epsilon than PyTorch's default."""
    if config.norm == "batch":
        return partial(nn.BatchNorm2d, eps=1e-3, track_running_stats=config.bn != "batch_stats")
    return norm_layer(config)
