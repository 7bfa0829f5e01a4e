"""AlexNet for small and for large images.

The form for small images is the one behind H-SFP's communication table. Its weights row counts 1,792
parameters on a client (conv1) and 2,446,400 on an edge server (conv2 to conv5), for smashed data of 64x16x16
and 256x4x4: these are torchvision's channels with its 5x5 conv2. The authors' published classes have a 3x3
conv2 (2,249,792 parameters); their table does not follow from it. The layers above are theirs: 4096, 1024,
512, classes.

Departs from both: no dropout, since its draws would depend on who computes what.
"""

from torch import nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, cifar_stem, scaled
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer


def alexnet(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """AlexNet in its one-column form (Krizhevsky, 2014, https://arxiv.org/abs/1404.5997).

    Convolutions keep their bias beside a norm layer; ``norm="none"`` is the paper's and torchvision's form.
    """
    small = cifar_stem(config, input_shape)
    at_least(8 if small else 63, input_shape, config)
    norm = norm_layer(config)
    c1, c2, c3, c4, c5 = (scaled(count, config) for count in (64, 192, 384, 256, 256))

    def conv(incoming: int, outgoing: int, kernel: int, stride: int = 1, padding: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(incoming, outgoing, kernel, stride, padding), norm(outgoing), nn.ReLU()]

    def pool() -> nn.Module:
        return nn.MaxPool2d(2, ceil_mode=True) if small else nn.MaxPool2d(3, 2)

    first = conv(input_shape[0], c1, 3) if small else conv(input_shape[0], c1, 11, 4, 2)
    height, width = (_side(pixels, small) for pixels in input_shape[1:])
    f1, f2 = (scaled(count, config) for count in ((1024, 512) if small else (4096, 4096)))
    blocks: dict[str, list[nn.Module]] = {
        "conv1": [*first, pool()],
        "conv2": [*conv(c1, c2, 5, padding=2), pool()],
        "conv3": conv(c2, c3, 3),
        "conv4": conv(c3, c4, 3),
        "conv5": [*conv(c4, c5, 3), pool()],
        "fc1": [nn.Flatten(), nn.Linear(c5 * height * width, f1), nn.ReLU()],
        "fc2": [nn.Linear(f1, f2), nn.ReLU()],
        "head": [nn.Linear(f2, num_classes)],
    }
    places = zip(("conv1", "conv2", "conv3", "conv4", "conv5"), (0, 3, 6, 8, 10), strict=True)
    upstream = {f"{name}.0": f"features.{place}" for name, place in places}
    upstream |= {"fc1.1": "classifier.1", "fc2.0": "classifier.4", "head": "classifier.6"}
    return backbone(blocks, cuts=["conv1", "conv5"], upstream=upstream)


def _side(pixels: int, small: bool) -> int:
    """The height or width of the last feature map."""
    if small:
        return -(-pixels // 8)
    side = (pixels + 4 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side
