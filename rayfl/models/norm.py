"""Normalisation layers: what replaces BatchNorm, and which parts of a state belong to it."""

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rayfl.models.config import ModelConfig

_BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})


def norm_layer(config: ModelConfig) -> Callable[[int], nn.Module]:
    """The factory ``channels -> layer`` that ``config.norm`` and ``config.bn`` ask for."""
    if config.norm == "batch":
        return lambda channels: nn.BatchNorm2d(channels, track_running_stats=config.bn != "batch_stats")
    if config.norm == "group":
        return lambda channels: group_norm(channels, config.norm_groups)
    return lambda channels: nn.Identity()


def group_norm(channels: int, max_groups: int = 8) -> nn.GroupNorm:
    """GroupNorm (Wu and He, 2018, https://arxiv.org/abs/1803.08494) over inputs [B, channels, ...].

    Takes the largest group count up to ``max_groups`` that divides ``channels`` and leaves at least two
    channels to a group: with one, a 1x1 feature map would be normalised to nothing. A prime count gets one
    group. FedDyn's official code has 2 groups throughout.
    """
    return nn.GroupNorm(_num_groups(channels, max_groups), channels)


def replace_batch_norm(module: nn.Module, max_groups: int = 8) -> nn.Module:
    """``module`` with every BatchNorm replaced by a GroupNorm as in :func:`group_norm`, weights kept.

    Works in place, for backbones from elsewhere; use what it returns, as the root may be a BatchNorm itself.
    """
    if isinstance(module, _BatchNorm):
        groups = _num_groups(module.num_features, max_groups)
        new = nn.GroupNorm(groups, module.num_features, module.eps, module.affine)
        if module.affine:
            new.weight, new.bias = module.weight, module.bias
        return new.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, replace_batch_norm(child, max_groups))
    return module


def use_batch_stats(module: nn.Module) -> None:
    """Drop the running statistics of every BatchNorm in ``module``, in place.

    Such a layer has no buffers and normalises by the batch at hand in eval mode too.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any layer of ``module`` is a BatchNorm, with or without running statistics."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def is_norm_buffer(name: str) -> bool:
    """Whether the state-dict key ``name`` is a BatchNorm statistic rather than a learnable weight."""
    return name.rpartition(".")[2] in _BUFFERS


def _num_groups(channels: int, max_groups: int) -> int:
    limit = min(max_groups, max(1, channels // 2))
    return next(count for count in range(limit, 0, -1) if channels % count == 0)
