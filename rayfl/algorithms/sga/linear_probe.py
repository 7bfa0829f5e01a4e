"""Linear probes on pooled features: what a depth tells of the classes, without the server's model."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.sga.messages import Probe, ProbeLosses

PENALTY = 1e-3
"""On the squared weights: features of a few batches are easily separated."""


def probe_losses(
    probes: Mapping[int, Probe], num_classes: int, pool: Callable[[Tensor], Tensor]
) -> dict[int, ProbeLosses]:
    """Each client's cross-entropy at both depths of its second half, by probes fitted to all first halves."""
    if not probes:
        return {}
    found: list[dict[int, float]] = []
    for side in ("shallow", "reference"):
        features = {client: pool(getattr(probe, side)).double() for client, probe in probes.items()}
        everything = torch.cat([each[: len(each) // 2] for each in features.values()])
        labels = torch.cat([probe.labels[: len(probe.labels) // 2] for probe in probes.values()])
        mean, scale = everything.mean(0), everything.std(0, unbiased=False).clamp(min=1e-6)
        weight, bias = fit((everything - mean) / scale, labels, num_classes)
        losses = {}
        for client, each in features.items():
            held = (each[len(each) // 2 :] - mean) / scale
            logits = held @ weight + bias
            losses[client] = F.cross_entropy(logits, probes[client].labels[len(each) // 2 :]).item()
        found.append(losses)
    return {client: ProbeLosses(found[0][client], found[1][client]) for client in probes}


def fit(features: Tensor, labels: Tensor, num_classes: int, steps: int = 100) -> tuple[Tensor, Tensor]:
    """Softmax regression of [n, d] features by L-BFGS, from zero: [d, Y] weights and [Y] biases."""
    weight = features.new_zeros(features.shape[1], num_classes, requires_grad=True)
    bias = features.new_zeros(num_classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(features @ weight + bias, labels) + PENALTY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return weight.detach(), bias.detach()
