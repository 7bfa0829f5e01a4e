"""ResNets: torchvision's residual blocks and initialisation, with a CIFAR or an ImageNet stem.

``norm="none"`` leaves their convolutions without a bias too, and is hard to train.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, cifar_stem, scaled
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer

# torchvision is imported inside the functions: it takes seconds that the small models need not pay.


def resnet18(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ResNet-18 (He et al., 2016, https://arxiv.org/abs/1512.03385)."""
    from torchvision.models.resnet import BasicBlock

    return _resnet(BasicBlock, (2, 2, 2, 2), config, input_shape, num_classes)


def resnet34(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ResNet-34 (He et al., 2016, https://arxiv.org/abs/1512.03385)."""
    from torchvision.models.resnet import BasicBlock

    return _resnet(BasicBlock, (3, 4, 6, 3), config, input_shape, num_classes)


def resnet50(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ResNet-50 (He et al., 2016, https://arxiv.org/abs/1512.03385), with torchvision's stride in the 3x3."""
    from torchvision.models.resnet import Bottleneck

    return _resnet(Bottleneck, (3, 4, 6, 3), config, input_shape, num_classes)


def _resnet(
    block: Any, depths: Sequence[int], config: ModelConfig, input_shape: Shape, num_classes: int
) -> Backbone:
    at_least(8, input_shape, config)
    blocks = encoder(block, depths, config, input_shape[0], cifar_stem(config, input_shape))
    outgoing = scaled(512, config) * block.expansion
    blocks["head"] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outgoing, num_classes)]
    upstream = {"stem.0": "conv1", "stem.1": "bn1", "head.2": "fc"}
    upstream |= {name: name.replace("_", ".") for name in blocks if name.startswith("layer")}
    model = backbone(blocks, upstream=upstream, task=["head.2"])
    initialise(model)
    return model


def encoder(
    block: Any, depths: Sequence[int], config: ModelConfig, channels: int, small: bool
) -> dict[str, list[nn.Module]]:
    """The layers of the stem and of every residual block, by block name; ``block`` is torchvision's class."""
    from torchvision.models.resnet import conv1x1

    norm = norm_layer(config)
    incoming, *stages = (scaled(count, config) for count in (64, 64, 128, 256, 512))
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    stem = [nn.Conv2d(channels, incoming, kernel, stride, padding, bias=False), norm(incoming), nn.ReLU()]
    blocks: dict[str, list[nn.Module]] = {"stem": stem if small else [*stem, nn.MaxPool2d(3, 2, padding=1)]}
    for stage, (inner, depth) in enumerate(zip(stages, depths, strict=True), start=1):
        outgoing = inner * block.expansion
        for index in range(depth):
            stride = 2 if stage > 1 and index == 0 else 1
            shortcut = None
            if stride != 1 or incoming != outgoing:
                shortcut = nn.Sequential(conv1x1(incoming, outgoing, stride), norm(outgoing))
            blocks[f"layer{stage}_{index}"] = [block(incoming, inner, stride, shortcut, norm_layer=norm)]
            incoming = outgoing
    return blocks


def initialise(model: nn.Module) -> None:
    """Draw every convolution anew as in He et al. 2015, https://arxiv.org/abs/1502.01852 (fan-out)."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
