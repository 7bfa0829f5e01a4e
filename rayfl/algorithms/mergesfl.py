"""MergeSFL: the clients' features are merged into one batch for one server step.

Liao, Xu, Xu, Wang, Yao, Qiao, "MergeSFL: Split Federated Learning with Feature Merging and Batch Size
Regulation", ICDE 2024, https://arxiv.org/abs/2311.13348.

    client --- activations, labels --> main     every step, all clients
    client <-- its slice of the merged gradient, times D / b_k --- main     every step
    client <-- w_C --- fed,  client --- w_C,k --> fed                       once a round

    w_S <- w_S - eta grad CE(concat_k z_k),  D = sum_k b_k ;   g_k = (D / b_k) slice_k
    w_C <- sum_k b_k w_C,k / D

Departs from the paper: batch sizes are those of the config, without regulation and client selection. The
average goes by batch size, which keeps one iteration equal to SGD on the union batch (``weights: uniform``
is the released code). Steps per round are the mean of what the clients' data amount to, so that a round
means the same work as elsewhere (``local_steps: 42`` is the released code); incomplete batches are dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from rayfl import cutting, roles
from rayfl.algorithms.splitfed_v1 import SplitConfig
from rayfl.algorithms.splitfed_v2 import SplitFedV2
from rayfl.fleet import Group
from rayfl.messages import Gradient, SmashedBatch
from rayfl.roles import per_client


class MergeSFL(SplitFedV2):
    """One merged batch, one server step, rescaled slices back."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """MergeSFL's knobs."""

        name: str = "mergesfl"
        weights: Literal["size", "batch", "uniform"] = "batch"
        drop_last: bool = True

    class MainServer(roles.MainServer):
        """Merges features and dispatches gradients."""

        @per_client
        def train_step(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
            """One step on the merged batch; each client gets the gradient of its own mean loss."""
            assert self.learner is not None
            if not smashed:
                return {}
            merged = SmashedBatch(
                cutting.merged([batch.activations for batch in smashed.values()]),
                torch.cat([batch.labels for batch in smashed.values()]),
            )
            sizes = [len(batch.labels) for batch in smashed.values()]
            slices = cutting.split(self.learn(self.learner, merged).values, sizes)
            rescaled = self.config.loss_reduction == "mean"
            return {
                client: Gradient(cutting.times(part, sum(sizes) / size if rescaled else 1.0))
                for client, part, size in zip(smashed, slices, sizes, strict=True)
            }

    def round(self, t: int) -> None:
        clients = self.sample(t)
        steps = self.steps(clients, t)
        clients.receive(self.fed.weights(), t, self.scatter(steps))
        self.main.start_round(t)
        for active in self.lockstep(clients, steps):
            smashed = active.forward()
            gradients = self.main.train_step(smashed)
            active.backward(gradients)
        self.fed.aggregate(clients.pooled.update())
        self.main.finish_round()

    def steps(self, clients: Group, t: int) -> dict[int, int]:
        return self.equal_steps(clients)
