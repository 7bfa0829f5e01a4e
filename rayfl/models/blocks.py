"""What the backbones are made of: a Sequential of named blocks, and the small decisions that families share.

A block of a stage is the child ``layer1_0``, because a child's name can't hold a dot; people read and write
it as ``layer1.0`` (see ``rayfl.models.cut``).
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import nn

from rayfl.errors import UserError
from rayfl.models.config import ModelConfig

Shape = tuple[int, int, int]
"""Channels, height, width."""


class Backbone(nn.Sequential):
    """Blocks in order, with what their builder knows about them. A slice of it is plain again."""

    def __init__(
        self,
        blocks: "OrderedDict[str, nn.Module]",
        cuts: Sequence[str] = (),
        upstream: Mapping[str, str] | None = None,
        task: Sequence[str] = (),
    ) -> None:
        super().__init__(blocks)
        self.cuts = tuple(cuts)
        """Good cuts, going up, where the stages don't give them."""
        self.upstream = dict(upstream or {})
        """Prefix of our state-dict names -> that of the library the parts are from, for pretrained files."""
        self.task = tuple(task)
        """Prefixes of the layers that belong to the task, which a pretrained file may lack."""


def backbone(
    blocks: Mapping[str, Sequence[nn.Module]],
    cuts: Sequence[str] = (),
    upstream: Mapping[str, str] | None = None,
    task: Sequence[str] = ("head",),
) -> Backbone:
    """The blocks in order, each made of its layers; one of a single layer is that layer itself.

    No activation works in place: the first layer of a slice may be handed the very tensor that the slice
    below still needs for its gradient.
    """
    made = OrderedDict(
        (name, layers[0] if len(layers) == 1 else nn.Sequential(*layers)) for name, layers in blocks.items()
    )
    model = Backbone(made, cuts, upstream, task)
    for layer in model.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
    return model


def scaled(count: int, config: ModelConfig) -> int:
    """A channel or unit count times ``model.width``, at least 1."""
    return max(1, round(count * config.width))


def at_least(pixels: int, input_shape: Shape, config: ModelConfig) -> None:
    """Raises UserError for images smaller than ``pixels`` on a side."""
    if min(input_shape[1:]) < pixels:
        seen = f"{input_shape[1]}x{input_shape[2]}"
        raise UserError(
            f"{config.name} needs images of at least {pixels}x{pixels}, got {seen}: take mlp or larger images"
        )


def cifar_stem(config: ModelConfig, input_shape: Shape) -> bool:
    """Whether the variant for small images is asked for, or fits."""
    return config.stem == "cifar" or (config.stem == "auto" and max(input_shape[1:]) <= 64)
