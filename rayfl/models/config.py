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
    """BatchNorm, a GroupNorm in place of each, or nothing; lenet and mlp have none, a vit LayerNorm."""

    norm_groups: int = 8
    """The most groups of a GroupNorm; see ``rayfl.models.norm.group_norm`` (FedDyn's official code: 2)."""

    bn: Literal["average", "local", "batch_stats"] = "average"
    """BatchNorm statistics: averaged, kept at each client, or not kept at all (the batch's, also in eval)."""

    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    """alexnet, mobilenet, resnet, vgg: the form for small or large images; auto: cifar up to 64 px."""

    width: float = 1.0
    """Multiplies every hidden channel and unit count, a vit's heads; 0.125: resnet18 has 8 to 64 channels."""

    patch_size: int | None = None
    """vit: a patch's side in pixels; default: the largest of 16, 8, 4, 2 giving 7 to a side."""

    pool: Literal["cls", "mean", "mean_all"] = "cls"
    """vit: the head reads the class token, its mean with the patches, or the mean of all, prompts too."""

    skips: int = 1
    """resnet50_unet: how many encoder stages feed skip connections, 0 to 4; more leave fewer cuts."""

    weights: str | None = None
    """A file of pretrained weights (.pt, .pth, .safetensors) named as in torchvision, timm, smp or rayfl."""

    weights_hash: str | None = None
    """SHA-256 of that file; filled in when the config is loaded."""

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, field) not in get_args(hint):
                raise unknown(f"model.{field}", getattr(self, field), get_args(hint))
        if not self.width > 0:
            raise UserError(f"model.width multiplies the channels and must be above 0, got {self.width}")
        if self.norm_groups < 1:
            raise UserError(f"model.norm_groups must be at least 1, got {self.norm_groups}")
        if self.patch_size is not None and self.patch_size < 1:
            raise UserError(f"model.patch_size must be at least 1 pixel, got {self.patch_size}")
        if not 0 <= self.skips <= 4:
            raise UserError(
                f"model.skips counts encoder stages, 0 to 4, got {self.skips}: 4 is the full U-Net"
            )
