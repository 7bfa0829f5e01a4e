"""What both sides of BESplit minimise."""

from typing import cast

from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.config import BESConfig
from rayfl.algorithms.bes.evidence import losses
from rayfl.host import Host


def each(host: Host, logits: Tensor, labels: Tensor, t: int) -> Tensor:
    """What each of [b, N] logits with [b] labels costs in round ``t``: [b] with graph."""
    config = cast(BESConfig, host.config)
    if config.loss == "edl":
        return losses(logits, labels, t, config.evidence)
    return F.cross_entropy(logits.double(), labels, reduction="none")


def reduced(host: Host, logits: Tensor, labels: Tensor, t: int) -> Tensor:
    """The loss of a batch: a scalar with graph, reduced as configured."""
    if cast(BESConfig, host.config).loss == "ce":
        return host.loss(logits, labels)
    costs = each(host, logits, labels, t)
    return costs.sum() if host.config.loss_reduction == "sum" else costs.mean()
