"""Backbones as sequences of named blocks: build one, cut it, know what each block costs."""

from rayfl.models.config import ModelConfig
from rayfl.models.costs import BlockCost, block_costs, model_costs, output_shapes, part_costs
from rayfl.models.cut import block_names, cut, default_cut, default_cuts, join, legal_cuts
from rayfl.models.norm import (
    group_norm,
    has_batch_norm,
    is_norm_buffer,
    norm_layer,
    replace_batch_norm,
    use_batch_stats,
)
from rayfl.models.vit import insert_prompts
from rayfl.models.zoo import MODELS, build

__all__ = [
    "MODELS",
    "BlockCost",
    "ModelConfig",
    "block_costs",
    "block_names",
    "build",
    "cut",
    "default_cut",
    "default_cuts",
    "group_norm",
    "has_batch_norm",
    "insert_prompts",
    "is_norm_buffer",
    "join",
    "legal_cuts",
    "model_costs",
    "norm_layer",
    "output_shapes",
    "part_costs",
    "replace_batch_norm",
    "use_batch_stats",
]
