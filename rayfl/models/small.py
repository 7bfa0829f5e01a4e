"""Backbones that a laptop trains in seconds."""

from torch import nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, scaled
from rayfl.models.config import ModelConfig
from rayfl.models.norm import norm_layer


def mlp(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """Two hidden layers of 200 units, the 2NN of FedAvg (McMahan et al., 2017, https://arxiv.org/abs/1602.05629)."""
    channels, height, width = input_shape
    hidden = scaled(200, config)
    return backbone(
        {
            "fc1": [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()],
            "fc2": [nn.Linear(hidden, hidden), nn.ReLU()],
            "head": [nn.Linear(hidden, num_classes)],
        }
    )


def lenet(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """LeNet-5 (LeCun et al., 1998, https://doi.org/10.1109/5.726791), but with ReLU and max-pool.

    Images below 32 px are padded by 2, so MNIST (28) and CIFAR (32) both reach the paper's 16x5x5 before
    ``fc1``. All of ``conv2``'s maps see all of ``conv1``'s, as in every modern form of it.
    """
    channels = input_shape[0]
    at_least(12, input_shape, config)
    padding = 2 if min(input_shape[1:]) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in input_shape[1:])
    c1, c2, f1, f2 = (scaled(count, config) for count in (6, 16, 120, 84))
    return backbone(
        {
            "conv1": [nn.Conv2d(channels, c1, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)],
            "conv2": [nn.Conv2d(c1, c2, 5), nn.ReLU(), nn.MaxPool2d(2)],
            "fc1": [nn.Flatten(), nn.Linear(c2 * height * width, f1), nn.ReLU()],
            "fc2": [nn.Linear(f1, f2), nn.ReLU()],
            "head": [nn.Linear(f2, num_classes)],
        }
    )


def cnn(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """Two 3x3 convolutions and one hidden layer, 57 k weights on MNIST: quick on a CPU; no paper's model."""
    channels = input_shape[0]
    at_least(8, input_shape, config)
    c1, c2, f1 = (scaled(count, config) for count in (16, 32, 64))
    norm, bias = norm_layer(config), config.norm == "none"
    # Pooling by 2, then by 3, keeps fc1 small; padded, the second covers 8, 28 and 32 px images to the edge.
    height, width = ((side // 2 + 2) // 3 for side in input_shape[1:])
    return backbone(
        {
            "conv1": [
                nn.Conv2d(channels, c1, 3, padding=1, bias=bias), norm(c1), nn.ReLU(), nn.MaxPool2d(2)
            ],
            "conv2": [
                nn.Conv2d(c1, c2, 3, padding=1, bias=bias), norm(c2), nn.ReLU(), nn.MaxPool2d(3, padding=1)
            ],
            "fc1": [nn.Flatten(), nn.Linear(c2 * height * width, f1), nn.ReLU()],
            "head": [nn.Linear(f1, num_classes)],
        }
    )  # fmt: skip


def convnet(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """Four 3x3 convolutions and a linear layer, 38 k weights on MNIST, for three tiers; no paper's model."""
    channels = input_shape[0]
    at_least(8, input_shape, config)
    c1, c2, c3, c4 = (scaled(count, config) for count in (16, 32, 32, 64))
    norm, bias = norm_layer(config), config.norm == "none"
    height, width = (side // 8 for side in input_shape[1:])

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), norm(outputs), nn.ReLU()]

    return backbone(
        {
            "conv1": [*stage(channels, c1), nn.MaxPool2d(2)],
            "conv2": [*stage(c1, c2), nn.MaxPool2d(2)],
            "conv3": stage(c2, c3),
            "conv4": [nn.MaxPool2d(2), *stage(c3, c4)],
            "head": [nn.Flatten(), nn.Linear(c4 * height * width, num_classes)],
        },
        cuts=("conv3", "conv4"),
    )
