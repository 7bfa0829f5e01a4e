"""Vision transformers: timm's parts and initialisation, laid out in blocks.

What crosses a cut is a token sequence [B, T, D]: the class token, then the patches. Prompts go between them
(:func:`insert_prompts`), after the embedding or before any later block; the head leaves them out.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rayfl.errors import UserError
from rayfl.models.blocks import Backbone, Shape, backbone, scaled
from rayfl.models.config import ModelConfig

_DEPTH = 12


def vit_tiny(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ViT-Ti of DeiT (Touvron et al., 2021, https://arxiv.org/abs/2012.12877): 3 heads, D = 192."""
    return _vit(3, config, input_shape, num_classes)


def vit_small(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ViT-S of DeiT (Touvron et al., 2021, https://arxiv.org/abs/2012.12877): 6 heads, D = 384."""
    return _vit(6, config, input_shape, num_classes)


def vit_b16(config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """ViT-B (Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929): 12 heads, D = 768."""
    return _vit(12, config, input_shape, num_classes)


def insert_prompts(tokens: Tensor, prompts: Tensor) -> Tensor:
    """[B, 1 + n, D] tokens and [m, D] or [B, m, D] prompts to [B, 1 + m + n, D].

    The prompts come right after the class token and have no position, as in shallow VPT (Jia et al., 2022,
    https://arxiv.org/abs/2203.12119).
    """
    prompts = prompts.expand(len(tokens), -1, -1)
    before = Embedding.num_prefix_tokens
    return torch.cat([tokens[:, :before], prompts, tokens[:, before:]], dim=1)


class Embedding(nn.Module):
    """[B, C, H, W] images to [B, 1 + n, D] tokens: the class token and n patches, with their positions.

    Images that patches don't cover evenly get zeros at the right and the lower edge.
    """

    num_prefix_tokens = 1
    """Tokens before the first patch: prompts are put behind them."""

    def __init__(self, vit: Any, pad_right: int, pad_below: int) -> None:
        super().__init__()
        self.cls_token: nn.Parameter = vit.cls_token
        self.pos_embed: nn.Parameter = vit.pos_embed
        self.patch_embed = vit.patch_embed
        self.pad = nn.ZeroPad2d((0, pad_right, 0, pad_below))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(self.pad(images))
        tokens: Tensor = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        return tokens + self.pos_embed


class Head(nn.Module):
    """[B, 1 + m + n, D] tokens with any number m of prompts to logits [B, num_classes]."""

    def __init__(self, vit: Any, pool: str) -> None:
        super().__init__()
        self.norm, self.fc = vit.norm, vit.head
        self.num_patches: int = vit.patch_embed.num_patches
        self.pool = pool

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm(tokens)
        if self.pool == "cls":
            pooled = tokens[:, 0]
        elif self.pool == "mean":
            pooled = torch.cat([tokens[:, :1], tokens[:, -self.num_patches :]], dim=1).mean(1)
        else:
            pooled = tokens.mean(1)
        logits: Tensor = self.fc(pooled)
        return logits


def _vit(heads: int, config: ModelConfig, input_shape: Shape, num_classes: int) -> Backbone:
    """The good cuts are FedSGA's: after a quarter, half and three quarters of the blocks."""
    from timm.models.vision_transformer import VisionTransformer

    channels, height, width = input_shape
    patch = _patch_size(config, height, width)
    right, below = -width % patch, -height % patch
    heads = scaled(heads, config)
    whole = VisionTransformer(
        img_size=(height + below, width + right),
        patch_size=patch,
        in_chans=channels,
        num_classes=num_classes,
        embed_dim=64 * heads,
        depth=_DEPTH,
        num_heads=heads,
    )
    blocks: dict[str, list[nn.Module]] = {"embed": [Embedding(whole, right, below)]}
    blocks |= {f"block_{i}": [block] for i, block in enumerate(whole.blocks)}
    blocks["head"] = [Head(whole, config.pool)]
    upstream = {f"embed.{name}": name for name in ("cls_token", "pos_embed", "patch_embed")}
    upstream |= {f"block_{i}": f"blocks.{i}" for i in range(_DEPTH)}
    upstream |= {"head.norm": "norm", "head.fc": "head"}
    quarters = [f"block.{i * _DEPTH // 4 - 1}" for i in (1, 2, 3)]
    return backbone(blocks, cuts=quarters, upstream=upstream, task=["head.fc"])


def _patch_size(config: ModelConfig, height: int, width: int) -> int:
    """``model.patch_size``, or the largest of 16, 8, 4 and 2 that gives at least 7 patches to a side."""
    short = min(height, width)
    if config.patch_size is None:
        return next((patch for patch in (16, 8, 4) if short >= 7 * patch), 2)
    if config.patch_size > short:
        raise UserError(
            f"model.patch_size={config.patch_size} is larger than the image, {height}x{width}: "
            f"take at most {short}, or leave it out"
        )
    return config.patch_size
