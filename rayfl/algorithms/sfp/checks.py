"""What can't be had of H-SFP where masks are learnt, and where they are not."""

from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.errors import UserError
from rayfl.models.blocks import Shape

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


def check(config: HSFPConfig, output: Shape | tuple[int]) -> None:
    """Raises UserError for masks of more than one class of lesion, options that mean nothing for positions,
    and an option of masks where the model puts out classes."""
    if len(output) == 1:
        if config.seg_mode != "pixel_moments":
            raise UserError(
                f"algorithm.seg_mode={config.seg_mode} is for masks, got a model whose output is {output}: "
                f"leave it out"
            )
        return
    if output[0] > 2:
        raise UserError(
            f"hsfp learns masks of one lesion on a background, got a model of {output[0]} classes: use "
            f"another method, such as hsfl"
        )
    if config.seg_mode == "repo_image_label":
        return
    for name, values in _LEFT.items():
        got = getattr(config, name)
        if got not in values:
            raise UserError(
                f"hsfp for segmentation takes algorithm.{name}={' or '.join(values)}, got {got}: positions "
                f"of maps stand in for images"
            )
