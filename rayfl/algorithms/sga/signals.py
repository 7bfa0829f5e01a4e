"""What a client tells of itself at the start of a round, and what is made of it (FedSGA, eqs. 3 to 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rayfl.algorithms.sga.estimator import FIRST_ROUND
from rayfl.messages import sent_as

LARGEST = 5.0
"""Relative drifts are cut here."""


@dataclass(frozen=True)
class Observation:
    """Three scalars."""

    alignment: Tensor = sent_as("control")
    """a in [-1, 1]: how well shallow features agree with their class prototypes."""
    drift: Tensor | None = sent_as("control")
    """delta >= 0: how far the mean shallow feature moved since last time; None the first time."""
    prompt_drift: Tensor | None = sent_as("control")
    """q >= 0: how far the prompts' descriptor moved; None the first time, 0 without prompts."""

    def plain(self) -> tuple[float, float | None, float | None]:
        """a, delta, q as numbers."""
        drift, prompt_drift = self.drift, self.prompt_drift
        return (
            self.alignment.item(),
            None if drift is None else drift.item(),
            None if prompt_drift is None else prompt_drift.item(),
        )


class Signal(nn.Module):
    """Stands behind the shallowest interface and lets features pass."""

    def __init__(self, pool: str, num_prompts: int) -> None:
        """Features are pooled as ``pool`` says of tokens (``ModelConfig.pool``)."""
        super().__init__()
        self.pool, self.num_prompts = pool, num_prompts

    def forward(self, features: Tensor) -> Tensor:
        return features

    def pooled(self, features: Tensor) -> Tensor:
        """[b, C, *] maps or [b, 1 + m + n, C] tokens to [b, C]; without gradient."""
        return pooled(features.detach(), self.pool, self.num_prompts)


class ProjectingSignal(Signal):
    """Holds the client's own projection phi_s."""

    def __init__(
        self, size: int, d_z: int, pool: str, num_prompts: int, lr_factor: float, generator: torch.Generator
    ) -> None:
        """``size`` channels are pooled."""
        super().__init__(pool, num_prompts)
        self.norm, self.fc = nn.LayerNorm(size), nn.Linear(size, d_z)
        drawn = torch.empty(d_z, size, device="cpu").normal_(0.0, size**-0.5, generator=generator)
        with torch.no_grad():
            self.fc.weight.copy_(drawn)
            self.fc.bias.zero_()
        for parameter in self.parameters():
            parameter.lr_factor = lr_factor  # type: ignore[attr-defined]

    def project(self, pooled: Tensor) -> Tensor:
        """phi_s: [b, C] pooled features to [b, d_z]."""
        result: Tensor = self.fc(self.norm(pooled))
        return result


def pooled(features: Tensor, how: str = "mean", num_prompts: int = 0) -> Tensor:
    """[b, C, H, W], [b, T, C] or [b, C] features to [b, C]: means, of tokens as ``how`` says.

    ``mean`` leaves out the prompts behind the class token, ``mean_all`` doesn't, ``cls`` is that token.
    """
    if features.dim() == 3:
        if how == "cls":
            return features[:, 0]
        if how == "mean" and num_prompts:
            features = torch.cat([features[:, :1], features[:, 1 + num_prompts :]], dim=1)
        return features.mean(1)
    return features.flatten(2).mean(2) if features.dim() > 2 else features


def moved(new: Tensor, old: Tensor | None, relative: bool) -> Tensor | None:
    """The distance between two vectors, relative to the old one's length where asked; None without an old."""
    if old is None:
        return None
    distance: Tensor = torch.linalg.vector_norm(new - old)
    if relative:
        distance = (distance / (torch.linalg.vector_norm(old) + 1e-8)).clamp(max=LARGEST)
    return distance


class Normaliser:
    """Makes observations comparable, at the server (``obs_norm``)."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.count, self.sums, self.squares = 0, [0.0] * 3, [0.0] * 3

    def __call__(self, observed: Mapping[int, tuple[float, float | None, float | None]]) -> dict[int, Any]:
        """(a, delta, q) by client, normalised; a client seen for the first time is maximally unstable."""
        known = [values for _, values in sorted(observed.items()) if values[1] is not None]
        centre: Sequence[float] = (0.0, 0.0, 0.0)
        scale: Sequence[float] = (1.0, 1.0, 1.0)
        if known and self.how == "cohort":
            drifts = [sum(values[j] or 0.0 for values in known) / len(known) or 1.0 for j in (1, 2)]
            centre = sum(a for a, _, _ in observed.values()) / len(observed), 0.0, 0.0
            scale = (1.0, *drifts)
        if self.how == "running_z":
            for values in known:
                self.count += 1
                for j in range(3):
                    self.sums[j] += values[j] or 0.0
                    self.squares[j] += (values[j] or 0.0) ** 2
            if self.count > 1:
                centre, scale = self._moments()
        return {
            client: tuple(
                FIRST_ROUND[j] if value is None else (value - centre[j]) / scale[j]
                for j, value in enumerate(values)
            )
            for client, values in observed.items()
        }

    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        means = [total / self.count for total in self.sums]
        variances = [square / self.count - mean**2 for square, mean in zip(self.squares, means, strict=True)]
        return tuple(means), tuple(max(variance, 0.0) ** 0.5 or 1.0 for variance in variances)

    def state_dict(self) -> dict[str, Any]:
        """Empty but for running moments."""
        if self.count == 0:
            return {}
        return {"count": self.count, "sums": list(self.sums), "squares": list(self.squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a stored state."""
        for key, value in state.items():
            setattr(self, key, value)
