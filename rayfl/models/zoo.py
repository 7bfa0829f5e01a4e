"""The table of backbones, and how one is built."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from rayfl.errors import UserError
from rayfl.models.alexnet import alexnet
from rayfl.models.blocks import Backbone, Shape
from rayfl.models.config import ModelConfig
from rayfl.models.mobilenet import mobilenet_v3_small
from rayfl.models.resnet import resnet18, resnet34, resnet50
from rayfl.models.small import cnn, convnet, lenet, mlp
from rayfl.models.unet import resnet50_unet
from rayfl.models.vgg import vgg11, vgg16
from rayfl.models.vit import vit_b16, vit_small, vit_tiny
from rayfl.seeding import derive
from rayfl.suggest import unknown

Builder = Callable[[ModelConfig, Shape, int], Backbone]

MODELS: dict[str, tuple[Builder, str]] = {
    "alexnet": (alexnet, "AlexNet for CIFAR, cut as in H-SFP by default, or for ImageNet"),
    "cnn": (cnn, "two 3x3 convolutions and a hidden layer, from 8x8 images up; small and fast"),
    "convnet": (convnet, "four 3x3 convolutions, for three tiers"),
    "lenet": (lenet, "LeNet-5 with ReLU and max-pool, from 12x12 images up; no norm layers"),
    "mlp": (mlp, "two hidden layers of 200 units (FedAvg's 2NN); no norm layers"),
    "mobilenet_v3_small": (mobilenet_v3_small, "MobileNetV3-Small, its stem with stride 1 for small images"),
    "resnet18": (resnet18, "ResNet-18 with a CIFAR or an ImageNet stem"),
    "resnet34": (resnet34, "ResNet-34 with a CIFAR or an ImageNet stem"),
    "resnet50": (resnet50, "ResNet-50 with a CIFAR or an ImageNet stem"),
    "resnet50_unet": (resnet50_unet, "segmentation: U-Net on ResNet-50, from 32x32 images up"),
    "vgg11": (vgg11, "VGG-11 with one linear layer on top for CIFAR, three for ImageNet"),
    "vgg16": (vgg16, "VGG-16 with one linear layer on top for CIFAR, three for ImageNet"),
    "vit_b16": (vit_b16, "ViT-B, patches of 16 or fewer pixels; LayerNorm throughout"),
    "vit_small": (vit_small, "ViT-S, as vit_b16 with half its width"),
    "vit_tiny": (vit_tiny, "ViT-Ti, as vit_b16 with a quarter of its width"),
}


def build(config: ModelConfig, input_shape: Shape, num_classes: int, seed: int) -> Backbone:
    """A freshly initialised backbone on the CPU in float32, in train mode: a pure function of its arguments.

    It maps [B, *input_shape] (channels, height, width) to logits [B, num_classes], for segmentation to
    [B, num_classes, height, width]. The caller's global RNG, default dtype and default device neither matter
    nor change. Raises UserError for an unknown name and for an image too small.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would reseed the GPUs' generators as well.
        torch.default_generator.manual_seed(derive(seed, "init"))
        return assemble(config, input_shape, num_classes)


def assemble(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
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


@contextmanager
def _float32() -> Iterator[None]:
    """torch.set_default_dtype has no scoped form; without it a float64 default would change the draws."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
