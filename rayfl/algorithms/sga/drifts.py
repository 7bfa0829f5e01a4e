"""What a client keeps of one round to see in the next what has moved (FedSGA, eqs. 2, 4 and 5)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rayfl.algorithms.sga import prompts
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.signals import moved

KEPT = ("feature", "descriptor", "scores")


class Drifts:
    """The last mean feature [C], the prompts' last descriptor [d], and what each did for the loss [m]."""

    def __init__(self, config: SGAConfig) -> None:
        self.config = config
        self.feature: Tensor | None = None
        self.descriptor: Tensor | None = None
        self.scores: Tensor | None = None
        self.signed: list[Tensor] = []

    def since(self, feature: Tensor, tokens: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """How far mean feature and prompts are from where they were last time, which they now take the place
        of; None the first time, and 0 for prompts that there are none of."""
        relative = self.config.obs_norm == "relative"
        first = self.feature is None
        drift, self.feature = moved(feature, self.feature, relative), feature
        if tokens is None:
            return drift, torch.zeros(())
        scores = torch.zeros(len(tokens)).to(tokens) if self.scores is None else self.scores
        descriptor = prompts.descriptor(tokens, self._alpha(scores))
        prompt_drift, self.descriptor = moved(descriptor, self.descriptor, relative), descriptor
        return drift, None if first else prompt_drift

    def note(self, tokens: Tensor) -> None:
        """What each prompt did for the loss in this step, by its gradient."""
        assert tokens.grad is not None
        self.signed.append(prompts.contributions(tokens, tokens.grad))

    def close(self) -> None:
        """Make scores of what was noted in the round, if anything."""
        if self.signed:
            steps = torch.stack(self.signed)
            mean_abs = self.config.score_reduce == "mean_abs"
            self.scores = steps.abs().mean(0) if mean_abs else steps.mean(0).abs()
        self.forget_steps()

    def forget_steps(self) -> None:
        """Drop what was noted since the round began."""
        self.signed = []

    def largest_share(self) -> float:
        """Of one prompt in the descriptor; 0 while nothing is known."""
        return 0.0 if self.scores is None else self._alpha(self.scores).max().item()

    def _alpha(self, scores: Tensor) -> Tensor:
        return prompts.importance(scores, self.config.tau_m, self.config.score_norm)

    def state_dict(self) -> dict[str, Any]:
        """Between rounds."""
        return {name: getattr(self, name) for name in KEPT if getattr(self, name) is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a stored state."""
        for name in KEPT:
            setattr(self, name, state.get(name))
