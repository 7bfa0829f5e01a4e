"""VGG: torchvision's configurations and initialisation, with the head of small or of large images.

Up to 64 px the head is a single linear layer on the 512 features left at 1x1, as CIFAR variants have it;
above, torchvision's two hidden layers of 4096. Departs from torchvision: no dropout, since its draws would
depend on who computes what, and pools keep an odd last row, so that images of any size pass.
"""

from torch import nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, cifar_stem, scaled
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer


def vgg11(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """VGG-11, configuration A (Simonyan and Zisserman, 2015, https://arxiv.org/abs/1409.1556)."""
    return _vgg("A", config, input_shape, num_classes)


def vgg16(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """VGG-16, configuration D (Simonyan and Zisserman, 2015, https://arxiv.org/abs/1409.1556)."""
    return _vgg("D", config, input_shape, num_classes)


def _vgg(letter: str, config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """Blocks are ``conv<stage>.<number>``, both from 1; a stage's last one ends with its pool."""
    from torchvision.models.vgg import cfgs

    at_least(8, input_shape, config)
    norm, channels = norm_layer(config), input_shape[0]
    blocks: dict[str, list[nn.Module]] = {}
    upstream: dict[str, str] = {}
    stage = number = 1
    place = 0
    for entry in cfgs[letter]:
        if entry == "M":
            blocks[f"conv{stage}_{number - 1}"].append(nn.MaxPool2d(2, ceil_mode=True))
            stage, number, place = stage + 1, 1, place + 1
            continue
        outgoing = scaled(entry, config)
        name = f"conv{stage}_{number}"
        blocks[name] = [nn.Conv2d(channels, outgoing, 3, padding=1), norm(outgoing), nn.ReLU()]
        upstream |= {f"{name}.0": f"features.{place}", f"{name}.1": f"features.{place + 1}"}
        channels, number, place = outgoing, number + 1, place + (2 if config.norm == "none" else 3)
    if cifar_stem(config, input_shape):
        blocks["head"] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
        task = ["head.2"]
    else:
        height, width = (-(-side // 32) for side in input_shape[1:])
        hidden = scaled(4096, config)
        blocks["fc1"] = [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]
        blocks["fc2"] = [nn.Linear(hidden, hidden), nn.ReLU()]
        blocks["head"] = [nn.Linear(hidden, num_classes)]
        upstream |= {"fc1.1": "classifier.0", "fc2.0": "classifier.3", "head": "classifier.6"}
        task = ["head"]
    model = backbone(blocks, upstream=upstream, task=task)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.zeros_(layer.bias)
    return model
