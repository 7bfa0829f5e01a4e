"""The backbones: each an ``nn.Sequential`` of named blocks.

A block of a stage is the child ``layer1_0``, because a child's name can't hold a dot; people read and write
it as ``layer1.0`` (see ``rayfl.models.cut``). No activation works in place: the first layer of a slice may be
handed the very tensor that the slice below still needs for its gradient.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rayfl.errors import UserError
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer
from rayfl.seeding import derive
from rayfl.suggest import unknown

Shape = tuple[int, int, int]
Builder = Callable[[ModelConfig, Shape, int], nn.Sequential]


def build(config: ModelConfig, input_shape: Shape, num_classes: int, seed: int) -> nn.Sequential:
    """A freshly initialised backbone on the CPU in float32, in train mode: a pure function of its arguments.

    It maps [B, *input_shape] (channels, height, width) to logits [B, num_classes]. The caller's global RNG,
    default dtype and default device neither matter nor change. Raises UserError for an unknown name and for
    an image too small.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would reseed the GPUs' generators as well.
        torch.default_generator.manual_seed(derive(seed, "init"))
        return assemble(config, input_shape, num_classes)


def assemble(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Sequential:
    """What :func:`build` makes, but drawn from the global RNG and on torch's current device."""
    if config.name not in MODELS:
        raise unknown("model", config.name, MODELS)
    if num_classes < 1:
        raise UserError(f"a model needs at least 1 class, got {num_classes}: set num_classes")
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise UserError(f"a model needs an input shape (channels, height, width), got {tuple(input_shape)}")
    builder, _ = MODELS[config.name]
    with _float32():
        return builder(config, input_shape, num_classes)


def mlp(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Sequential:
    """Two hidden layers of 200 units, the 2NN of FedAvg (McMahan et al., 2017, https://arxiv.org/abs/1602.05629)."""
    channels, height, width = input_shape
    hidden = _scaled(200, config)
    return _blocks(
        fc1=[nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()],
        fc2=[nn.Linear(hidden, hidden), nn.ReLU()],
        head=[nn.Linear(hidden, num_classes)],
    )


def lenet(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998, https://doi.org/10.1109/5.726791), but with ReLU and max-pool.

    Images below 32 px are padded by 2, so MNIST (28) and CIFAR (32) both reach the paper's 16x5x5 before
    ``fc1``. All of ``conv2``'s maps see all of ``conv1``'s, as in every modern form of it.
    """
    channels = input_shape[0]
    _at_least(12, input_shape, config)
    padding = 2 if min(input_shape[1:]) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in input_shape[1:])
    c1, c2, f1, f2 = (_scaled(count, config) for count in (6, 16, 120, 84))
    return _blocks(
        conv1=[nn.Conv2d(channels, c1, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)],
        conv2=[nn.Conv2d(c1, c2, 5), nn.ReLU(), nn.MaxPool2d(2)],
        fc1=[nn.Flatten(), nn.Linear(c2 * height * width, f1), nn.ReLU()],
        fc2=[nn.Linear(f1, f2), nn.ReLU()],
        head=[nn.Linear(f2, num_classes)],
    )


def cnn(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Sequential:
    """Two 3x3 convolutions and one hidden layer, 57 k weights on MNIST: quick on a CPU; no paper's model."""
    channels = input_shape[0]
    _at_least(8, input_shape, config)
    c1, c2, f1 = (_scaled(count, config) for count in (16, 32, 64))
    norm, bias = norm_layer(config), config.norm == "none"
    # Pooling by 2, then by 3, keeps fc1 small; padded, the second covers 8, 28 and 32 px images to the edge.
    height, width = ((side // 2 + 2) // 3 for side in input_shape[1:])
    return _blocks(
        conv1=[nn.Conv2d(channels, c1, 3, padding=1, bias=bias), norm(c1), nn.ReLU(), nn.MaxPool2d(2)],
        conv2=[nn.Conv2d(c1, c2, 3, padding=1, bias=bias), norm(c2), nn.ReLU(), nn.MaxPool2d(3, padding=1)],
        fc1=[nn.Flatten(), nn.Linear(c2 * height * width, f1), nn.ReLU()],
        head=[nn.Linear(f1, num_classes)],
    )


def resnet18(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Sequential:
    """ResNet-18 (He et al., 2016, https://arxiv.org/abs/1512.03385): torchvision's blocks and initialisation.

    ``norm="none"`` leaves its convolutions without a bias too, and is hard to train.
    """
    # Here because importing torchvision takes seconds that the small models need not pay.
    from torchvision.models.resnet import BasicBlock, conv1x1

    _at_least(8, input_shape, config)
    norm = norm_layer(config)
    incoming, *stages = (_scaled(count, config) for count in (64, 64, 128, 256, 512))
    small = config.stem == "cifar" or (config.stem == "auto" and max(input_shape[1:]) <= 64)
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    stem = [
        nn.Conv2d(input_shape[0], incoming, kernel, stride, padding, bias=False),
        norm(incoming),
        nn.ReLU(),
    ]
    blocks: dict[str, list[nn.Module]] = {"stem": stem if small else [*stem, nn.MaxPool2d(3, 2, padding=1)]}
    for stage, channels in enumerate(stages, start=1):
        for index in (0, 1):
            stride = 2 if stage > 1 and index == 0 else 1
            shortcut = None
            if stride != 1 or incoming != channels:
                shortcut = nn.Sequential(conv1x1(incoming, channels, stride), norm(channels))
            block = BasicBlock(incoming, channels, stride, shortcut, norm_layer=norm)
            block.relu = nn.ReLU()
            blocks[f"layer{stage}_{index}"] = [block]
            incoming = channels
    blocks["head"] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(incoming, num_classes)]
    model = _blocks(**blocks)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


MODELS: dict[str, tuple[Builder, str]] = {
    "cnn": (cnn, "two 3x3 convolutions and a hidden layer, from 8x8 images up; small and fast"),
    "lenet": (lenet, "LeNet-5 with ReLU and max-pool, from 12x12 images up; no norm layers"),
    "mlp": (mlp, "two hidden layers of 200 units (FedAvg's 2NN); no norm layers"),
    "resnet18": (resnet18, "ResNet-18 with a CIFAR or an ImageNet stem"),
}


def _blocks(**blocks: list[nn.Module]) -> nn.Sequential:
    """The blocks in order; one of a single layer is that layer itself."""
    return nn.Sequential(
        OrderedDict((name, ls[0] if len(ls) == 1 else nn.Sequential(*ls)) for name, ls in blocks.items())
    )


def _scaled(count: int, config: ModelConfig) -> int:
    return max(1, round(count * config.width))


def _at_least(pixels: int, input_shape: Shape, config: ModelConfig) -> None:
    if min(input_shape[1:]) < pixels:
        seen = f"{input_shape[1]}x{input_shape[2]}"
        raise UserError(
            f"{config.name} needs images of at least {pixels}x{pixels}, got {seen}: take mlp or larger images"
        )


@contextmanager
def _float32() -> Iterator[None]:
    """torch.set_default_dtype has no scoped form; without it a float64 default would change the draws."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
