"""What a user says about the backbone."""

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from rayfl.errors import UserError
from rayfl.suggest import unknown


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One backbone; fields without meaning for it (see each field) have no effect.

    Raises UserError for an option that isn't known or a number out of range.
    """

    name: str = "cnn"
    """Which backbone: a key of ``rayfl.models.MODELS``."""

    norm: Literal["batch", "group", "none"] = "batch"
    """cnn, resnet18: BatchNorm, a GroupNorm in place of each, or nothing; lenet and mlp never have any."""

    norm_groups: int = 8
    """The most groups of a GroupNorm; see ``rayfl.models.norm.group_norm`` (FedDyn's official code: 2)."""

    bn: Literal["average", "local", "batch_stats"] = "average"
    """BatchNorm statistics: averaged, kept at each client, or not kept at all (the batch's, also in eval)."""

    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    """resnet18: 3x3 without max-pool, or 7x7 stride 2 with it; auto takes cifar for images up to 64 px."""

    width: float = 1.0
    """Multiplies every hidden channel and unit count; 0.125 gives a resnet18 of 8 to 64 channels."""

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, field) not in get_args(hint):
                raise unknown(f"model.{field}", getattr(self, field), get_args(hint))
        if not self.width > 0:
            raise UserError(f"model.width multiplies the channels and must be above 0, got {self.width}")
        if self.norm_groups < 1:
            raise UserError(f"model.norm_groups must be at least 1, got {self.norm_groups}")
