"""ResNet-50 U-Net: segmentation_models_pytorch's decoder and head on torchvision's ResNet-50.

No skip connection crosses a cut. ``model.skips`` says how many encoder stages below the bottleneck feed one;
everything above the lowest of them is one block, ``unet``, whose input is that stage's output. So with 1, the
default, cuts go up to ``layer3`` and layer4 is on the decoder's side, as in H-SFP's segmentation model. With
0 they go up to ``layer4``. With 4, the U-Net of Ronneberger et al., 2015 (https://arxiv.org/abs/1505.04597),
the only cut is after ``stem``.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from rayfl.models.blocks import Backbone, Shape, at_least, backbone, scaled
from rayfl.models.config import ModelConfig
from rayfl.models.norm import replace_batch_norm, use_batch_stats
from rayfl.models.resnet import encoder, initialise

_STAGES = ("layer1", "layer2", "layer3", "layer4")


def resnet50_unet(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """Images [B, C, H, W] to logits [B, num_classes, H, W]; the stem is ImageNet's, H and W are arbitrary."""
    from segmentation_models_pytorch.base import SegmentationHead
    from segmentation_models_pytorch.base.initialization import initialize_decoder, initialize_head
    from segmentation_models_pytorch.decoders.unet.decoder import UnetDecoder
    from torchvision.models.resnet import Bottleneck

    at_least(32, input_shape, config)
    blocks = encoder(Bottleneck, (3, 4, 6, 3), config, input_shape[0], small=False)
    encoding = nn.ModuleList(nn.Sequential(*layers) for layers in blocks.values())
    initialise(encoding)
    channels = [scaled(64, config), *(scaled(count, config) * 4 for count in (64, 128, 256, 512))]
    lowest = 4 - config.skips
    decoder = UnetDecoder(
        encoder_channels=[input_shape[0], *([0] * lowest), *channels[lowest:]],
        decoder_channels=[scaled(count, config) for count in (256, 128, 64, 32, 16)],
        use_norm="identity" if config.norm == "none" else "batchnorm",
    )
    head = SegmentationHead(scaled(16, config), num_classes)
    initialize_decoder(decoder)
    initialize_head(head)
    if config.norm == "group":
        replace_batch_norm(decoder, config.norm_groups)
    elif config.bn == "batch_stats":
        use_batch_stats(decoder)

    deep = _STAGES[lowest:] if config.skips else ()
    stages = {
        stage: nn.Sequential(*(blocks.pop(name)[0] for name in list(blocks) if name.startswith(stage)))
        for stage in deep
    }
    pool = blocks["stem"].pop() if config.skips == 4 else nn.Identity()
    upstream = {"stem.0": "encoder.conv1", "stem.1": "encoder.bn1", "unet": ""}
    upstream |= {name: f"encoder.{name.replace('_', '.')}" for name in blocks if name != "stem"}
    blocks["unet"] = [UNet(pool, stages, decoder, head, _sizes(input_shape))]
    return backbone(blocks, upstream=upstream, task=["unet.decoder", "unet.segmentation_head"])


class UNet(nn.Module):
    """The encoder stages above the lowest skip, the decoder and the head.

    Takes the output of the encoder below, which is also the lowest skip if there are stages above it.
    """

    cut_hint = "lower model.skips to cut deeper in the encoder"

    def __init__(
        self,
        pool: nn.Module,
        stages: dict[str, nn.Sequential],
        decoder: nn.Module,
        segmentation_head: nn.Module,
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.pool, self.encoder = pool, nn.ModuleDict(stages)
        self.decoder, self.segmentation_head = decoder, segmentation_head
        self.sizes = tuple(sizes)

    def forward(self, features: Tensor) -> Tensor:
        outputs = [features]
        features = self.pool(features)
        for stage in self.encoder.values():
            features = stage(features)
            outputs.append(features)
        features = self.decoder.center(features)  # type: ignore[operator]
        skips: list[Tensor | None] = [*outputs[-2::-1], *[None] * 5]
        for block, (height, width), skip in zip(self.decoder.blocks, self.sizes, skips, strict=False):  # type: ignore[arg-type]
            features = block(features, height, width, skip_connection=skip)
        logits: Tensor = self.segmentation_head(features)
        return logits


def _sizes(input_shape: Shape) -> list[tuple[int, int]]:
    """Height and width after each of the five decoder blocks: those that the encoder had on its way down."""
    sizes = [input_shape[1:]]
    for _ in range(4):
        height, width = sizes[-1]
        sizes.append((-(-height // 2), -(-width // 2)))
    return sizes[::-1]
