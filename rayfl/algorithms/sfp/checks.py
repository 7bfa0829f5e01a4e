"""What can't be had of H-SFP where masks are learnt."""

from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.errors import UserError

_LEFT = {
    "contrast": ("supcon",),
    "contrast_on": ("gap",),
    "edge_views": ("draws",),
    "proto_space": ("map",),
    "covariance": ("diag", "mu_only"),
    "syn_prior": ("balanced",),
}
"""The values that mean something for positions: each is a vector of its own, with a label of its own, and how
many are of a class is up to the masks."""


def check_masks(config: HSFPConfig, num_classes: int) -> None:
    """Raises UserError for more than one class of lesion, and for options that mean nothing for positions."""
    if num_classes > 2:
        raise UserError(
            f"hsfp draws masks of one lesion on a background, got a model of {num_classes} classes: use "
            f"another method, such as hsfl"
        )
    for name, values in _LEFT.items():
        got = getattr(config, name)
        if got not in values:
            raise UserError(
                f"hsfp for segmentation takes algorithm.{name}={' or '.join(values)}, got {got}: positions "
                f"of maps stand in for images"
            )
