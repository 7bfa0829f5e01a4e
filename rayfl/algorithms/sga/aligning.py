"""Where a client's shallow features stand among the prototypes in one round (FedSGA, eq. 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead, embedded
from rayfl.algorithms.sga.prototypes import Prototypes
from rayfl.algorithms.sga.sides import Below
from rayfl.algorithms.sga.signals import ProjectingSignal
from rayfl.host import Batch, evaluating


@dataclass(frozen=True)
class Aligning:
    """By phi_s, the client's own or what the server sent for it."""

    config: SGAConfig
    below: Below
    prototypes: Prototypes

    def observe(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """The alignment, a scalar, and the mean feature [C_1] of some batches, in evaluation mode."""
        with evaluating(self.below.part):
            shallow = [self._pooled(self.below.run(batch.inputs, 0, 1)) for batch in batches]
            features, labels = torch.cat(shallow), torch.cat([batch.labels for batch in batches])
            return self.prototypes.alignment(self._project(features), labels), features.mean(0)

    def loss(self, shallow: Tensor, labels: Tensor) -> Tensor | None:
        """What trains phi_s, and nothing else, on features at p_1."""
        if self.config.phi_s != "learned" or not self.config.adaptive:
            return None
        projected = self._project(self._pooled(shallow))
        if self.config.phi_loss == "cos":
            return self.prototypes.cosine_loss(projected, labels)
        return self.prototypes.contrastive_loss(projected, labels, self.config.tau_a)

    def _pooled(self, shallow: Tensor) -> Tensor:
        return self.below.signal.pooled(shallow).to(self.prototypes.directions.dtype)

    def _project(self, pooled: Tensor) -> Tensor:
        """[b, C_1] to [b, d_z]."""
        signal, sent = self.below.signal, self.prototypes.projector
        if isinstance(signal, ProjectingSignal):
            return signal.project(pooled)
        head = self.below.learner.host.parts["main"][-1]
        assert isinstance(head, Harmoniser | PlainHead)
        assert sent is not None
        return embedded(head, sent, pooled)
