"""What both sides of BESplit minimise."""

from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import BESConfig
from rayfl.algorithms.bes.evidence import losses
from rayfl.host import Host


def each(config: BESConfig, logits: Tensor, labels: Tensor, t: int) -> Tensor:
    """What each of [b, N] logits with [b] labels costs in round ``t``: [b] with graph."""
    if config.loss == "edl":
        return losses(logits, labels, t, config.evidence)
    return F.cross_entropy(logits.double(), labels, reduction="none")


def reduced(host: Host, logits: Tensor, labels: Tensor, t: int) -> Tensor:
    """The loss of a batch: a scalar with graph, reduced as configured."""
    config = host.config
    assert isinstance(config, BESConfig)
    if config.loss == "ce" or host.hollow:
        return host.loss(logits, labels)
    costs = each(config, logits, labels, t)
    return costs.sum() if config.loss_reduction == "sum" else costs.mean()
