"""Every backbone, small enough to run in tests."""

import functools

import torch
from torch import nn

from rayfl.models import MODELS, ModelConfig, build

FAMILIES = ("mlp", "lenet", "cnn", "alexnet", "vgg11", "mobilenet_v3_small", "resnet18", "resnet50",
            "vit_tiny", "resnet50_unet")  # fmt: skip
"""One backbone for each builder and each kind of block."""
NORMED = ("cnn", "alexnet", "vgg11", "mobilenet_v3_small", "resnet18", "resnet50", "resnet50_unet")
"""Those of them that ``model.norm`` changes."""
OTHERS = tuple(name for name in MODELS if name not in FAMILIES)


def shape(name: str) -> tuple[int, int, int]:
    """Images that are small for the backbone."""
    return (3, 32, 32) if name == "resnet50_unet" else (3, 16, 16)


def make(name: str, **options: object) -> nn.Sequential:
    """A narrow model for 10 classes, in float64."""
    config = ModelConfig(name=name, **{"width": 0.125, **options})  # type: ignore[arg-type]
    return build(config, shape(name), 10, 3).double()


@functools.cache
def shared(name: str, norm: str = "batch") -> nn.Sequential:
    """The same model for several tests, which must leave it as it is."""
    return make(name, norm=norm)


def inputs(name: str, count: int = 2) -> torch.Tensor:
    """Random images."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, *shape(name), dtype=torch.float64, generator=draw)
