"""What can be said about H-SFP."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from rayfl.algorithms.sfp.gaussians import Covariance, Pooling
from rayfl.training import TrainingConfig

Interval = Annotated[int, Ge(1)] | None


@dataclass(frozen=True, kw_only=True)
class HSFPConfig(TrainingConfig):
    """Knobs of the three tiers."""

    lr: Annotated[float, Gt(0)] = 1e-4
    """Learning rate of all tiers."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """Optimiser of all tiers."""
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    """L2 penalty (sgd, adam) or decoupled decay (adamw)."""
    reset_optimizer: Literal["per_round", "keep", "per_batch"] = "keep"
    """When momentum and moments start anew: with each round, or never, averages included."""
    batch_size: Annotated[int, Ge(1)] = 16
    """Samples per step, real or drawn."""
    local_epochs: Annotated[int, Ge(0)] = 10
    """Passes of a client over its data per round; 0 leaves it untrained."""
    edge_epochs: Annotated[int, Ge(0)] = 10
    """Passes of an edge over what it drew in a round."""
    cloud_epochs: Annotated[int, Ge(0)] = 10
    """Passes of the cloud over what it drew in a round."""
    cut_layers: tuple[str | int, str | int] | None = None
    """The last block on the client and the last block on the edge; by default early ones."""
    intervals: tuple[Interval, Interval] = (5, 10)
    """Rounds between averages of client parts, I_c, and of edge parts, I_e; null for never. The paper's
    variants are (A) 5, 10, (B) 10, 20, (C) 25, 50."""
    avg_order: Literal["before", "after"] = "before"
    """Average before moments are taken and the tiers above train, or at the end of the round, as printed."""
    client_avg_scope: Literal["hierarchical", "edge"] = "hierarchical"
    """Whether client parts are also averaged over edges, with the edges' own, or within edges alone."""
    distribute: Literal["lazy", "participants", "all"] = "lazy"
    """Who gets averaged client parts: whoever takes part next, those that were averaged, or everybody."""
    contrast: Literal["supcon", "infonce", "none"] = "supcon"
    """The loss of clients and edges: by labels, by views alone, or cross-entropy by linear heads that are
    thrown away."""
    contrast_on: Literal["gap", "flat"] = "gap"
    """Whether a client's maps are pooled or flattened for it."""
    tau: Annotated[float, Gt(0)] = 0.5
    """Its temperature."""
    views: Literal[1, 2] = 2
    """How many times a batch holds each sample, differently augmented by ``data.augment``, whose ``supcon``
    makes two of each by itself."""
    edge_views: Literal["spatial", "draws"] = "draws"
    """The two views of an edge: crop and blur of one drawn map, or two draws."""
    skip_one_class_batches: bool = False
    """Take no contrastive step on a batch of a single class, whose optimum is a point."""
    proto_space: Literal["map", "grid", "vector"] = "map"
    """What a client's moments are of: its maps, their means on a grid, or their means."""
    grid: Annotated[int, Ge(1)] = 4
    """Cells per side of ``grid``."""
    covariance: Covariance = "diag"
    """Variances, means alone, the main directions as well, or whole covariances, which are for few features:
    D (D + 1) / 2 numbers per class, of at most 1024."""
    rank: Annotated[int, Ge(1)] = 4
    """Directions per class of ``low_rank``, at most a quarter of its samples."""
    pooling: Pooling = "exact"
    """What stands for a class of several places: the moments of the union, plain means of moments, or all
    their Gaussians."""
    min_count: Annotated[int, Ge(1)] = 1
    """Classes with fewer samples (for segmentation: positions, and for the ellipses lesions) at a client are
    not sent: the mean of one is that sample's feature."""
    syn_per_class: Annotated[int, Ge(1)] = 50
    """Features drawn per class and round, the mean over classes where the prior is empirical; for
    segmentation, maps drawn per round, each with its mask."""
    syn_prior: Literal["balanced", "empirical"] = "balanced"
    """As many of each class, or in proportion to samples."""
    clip_nonneg: bool = False
    """Cut drawn features off below 0, as a ReLU would."""
    seg_mode: Literal["pixel_moments", "repo_image_label"] = "pixel_moments"
    """What a class is of where masks are learnt: a position, a design of ours in which moments alone go up;
    or an image, as in the authors' code. There the cloud needs the features of every single image, with its
    mask, which breaks the method's premise and costs as many activations."""
    eps: Annotated[float, Ge(0)] = 1e-6
    """Added to variances before drawing."""
    edge_norm: Literal["group", "batch"] = "group"
    """The norm layers of the edge part, which trains on what is drawn and is tested on what is real."""
