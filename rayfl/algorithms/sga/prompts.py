"""Private prompts of FedSGA: how they enter the features, and what they tell of a client."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from rayfl import tree
from rayfl.messages import Update, Weights
from rayfl.models.vit import insert_prompts

PromptKind = Literal["tokens", "attn", "add_mean", "pad"]
FRAME = 2
"""Pixels of the frame of ``pad``."""


class Prompts(nn.Module):
    """m learnable vectors that one client adds to its features; every shape below stays legal at any cut.

    ``tokens``: [b, 1 + n, d] tokens to [b, 1 + m + n, d] (Jia et al., 2022, https://arxiv.org/abs/2203.12119).
    ``attn``: each location u of [b, d, *] adds ``sum_k softmax_k(<h_u, eps_k> / sqrt(d)) eps_k``.
    ``add_mean``: each location adds the mean of the prompts. ``pad``: images [b, C, H, W] add them, chunk
    after chunk, to a frame of pixels (Bahng et al., 2022, https://arxiv.org/abs/2203.17274).
    """

    def __init__(
        self,
        kind: PromptKind,
        count: int,
        shape: tuple[int, ...],
        std: float,
        lr_factor: float,
        generator: torch.Generator,
    ) -> None:
        """``shape`` is that of what the prompts are added to, without the batch axis."""
        super().__init__()
        self.kind = kind
        size = shape[-1] if kind == "tokens" else shape[0]
        if kind == "pad":
            self.frame = _frame(shape)
            self.frame_size = int(self.frame.sum())
            size = -(-self.frame_size // count)
        tokens = torch.empty(count, size, device="cpu").normal_(0.0, std, generator=generator)
        self.tokens = nn.Parameter(tokens.to(torch.get_default_device()))
        self.tokens.lr_factor = lr_factor  # type: ignore[attr-defined]

    def forward(self, features: Tensor) -> Tensor:
        if self.kind == "tokens":
            return insert_prompts(features, self.tokens)
        if self.kind == "attn":
            scores = torch.einsum("bd...,kd->bk...", features, self.tokens) / self.tokens.shape[1] ** 0.5
            return features + torch.einsum("bk...,kd->bd...", scores.softmax(1), self.tokens)
        if self.kind == "add_mean":
            mean = self.tokens.mean(0)
            return features + mean.reshape(-1, *[1] * (features.dim() - 2))
        border = torch.zeros_like(features[0])
        frame = self.frame.to(features.device)
        return features + border.masked_scatter(frame, self.tokens.flatten()[: self.frame_size])


def _frame(shape: tuple[int, ...]) -> Tensor:
    frame = torch.ones(shape, dtype=torch.bool, device="cpu")
    frame[:, FRAME:-FRAME, FRAME:-FRAME] = False
    return frame


def contributions(tokens: Tensor, gradients: Tensor) -> Tensor:
    """``(d loss / d eps_k)^T eps_k`` of [m, d] prompts, [m] (FedSGA, eq. 2, before the absolute value)."""
    return (tokens.detach() * gradients).sum(1)


def importance(scores: Tensor, tau: float, norm: str = "none") -> Tensor:
    """alpha = softmax(c / tau), [m]; with ``norm="max"`` scores are first divided by the largest."""
    if norm == "max":
        scores = scores / scores.max().clamp(min=torch.finfo(scores.dtype).tiny)
    return (scores / tau).softmax(0)


def descriptor(tokens: Tensor, alpha: Tensor) -> Tensor:
    """``sum_k alpha_k eps_k`` of [m, d] prompts, [d] (FedSGA, eq. 2)."""
    return alpha @ tokens.detach()


def of_nobody(own: Mapping[int, Weights], none: bool = False) -> Weights:
    """The prompts of a model of nobody in particular: the mean of the clients' own, or (``none``) zeros."""
    mean = tree.weighted_mean({client: Update(prompts, 1.0) for client, prompts in own.items()}, len(own))
    assert mean is not None
    return {name: torch.zeros_like(value) for name, value in mean.weights.items()} if none else mean.weights
