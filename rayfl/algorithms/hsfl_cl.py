"""HSFL with a contrastive loss at client and edge: a row of H-SFP's ablation.

"Hierarchical Federated Learning with Decoupled Split-Model Prototyping", ECCV 2026, Table 5. The contrast is
that of Khosla et al. 2020, https://arxiv.org/abs/2004.11362.

    client --- z1, labels --> edge --- z2, labels --> main     every step, as in HSFL
    client <-- gradient at cut 1 --- edge <-- gradient at cut 2 --- main

    client:  gradient from the edge + cl_weight * grad of
             -(1/|V|) sum_i (1/|P(i)|) sum_{p in P(i)} log softmax_a(z_i . z_a / tau)[p]
    edge:    gradient from the cloud + the same of its own outputs

Departs from the paper: it says no more of this row than its name; weight and temperature are H-SFP's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from rayfl.algorithms.hsfl import HSFL
from rayfl.algorithms.sfp.contrast import directions, supcon
from rayfl.cutting import Values
from rayfl.messages import Gradient, SmashedBatch
from rayfl.roles import per_client


class HSFLCL(HSFL):
    """HSFL whose lower tiers also pull classes together."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HSFL.Config):
        """HSFL's knobs and those of the contrast."""

        name: str = "hsfl_cl"
        cl_weight: Annotated[float, Ge(0)] = 1.0
        """Of the contrastive loss beside the cross-entropy."""
        tau: Annotated[float, Gt(0)] = 0.5
        """Its temperature."""

    class Client(HSFL.Client):
        """Contrasts its own outputs."""

        def forward(self) -> SmashedBatch:
            smashed = super().forward()
            self.labels = smashed.labels
            return smashed

        def backward(self, gradient: Gradient) -> None:
            super().backward(_joined(self.config, gradient, self.output, self.labels))

    class EdgeServer(HSFL.EdgeServer):
        """Contrasts what it passes on, client by client."""

        @per_client
        def forward(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, SmashedBatch]:
            self.labels = {client: batch.labels for client, batch in smashed.items()}
            return super().forward(smashed)

        @per_client
        def backward(self, gradients: Mapping[int, Gradient]) -> dict[int, Gradient]:
            return super().backward(
                {
                    client: _joined(self.config, gradient, self.passing[client][1], self.labels[client])
                    for client, gradient in gradients.items()
                }
            )


def _joined(config: Any, gradient: Gradient, outputs: Values, labels: Tensor) -> Gradient:
    """The gradient from above and that of the contrastive loss, at a tier's outputs."""
    assert isinstance(outputs, Tensor), "contrast takes one tensor at a cut"
    assert isinstance(gradient.values, Tensor)
    leaf = outputs.detach().requires_grad_()
    loss = config.cl_weight * supcon(directions(leaf), labels, config.tau)
    return Gradient(gradient.values + torch.autograd.grad(loss, leaf)[0])
