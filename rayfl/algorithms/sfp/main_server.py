"""H-SFP's cloud: the upper part of the model, trained on features drawn from the edges' moments."""

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from rayfl import roles
from rayfl.algorithms.sfp.image_labels import decoder_loss
from rayfl.algorithms.sfp.messages import Features, Message
from rayfl.algorithms.sfp.prototypes import prototypes
from rayfl.algorithms.sfp.synthesis import shuffled
from rayfl.host import Host, Loss
from rayfl.seeding import generator


class MomentCloud(roles.MainServer):
    """Holds the cloud part, of which there is one."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.prototypes = prototypes(host, "main")

    def train_round(self, moments: Mapping[int, Message | None], t: int) -> None:
        """Draw from what the round's edges sent, and train the cloud part by the task's loss."""
        found = self.prototypes.sources(moments)
        if found:
            draws = generator(self.facts.seed, "cloud synthesis", t)
            self._fit(*self.prototypes.draw(found, 1, draws), None, draws, t)

    def train_on_features(self, features: Mapping[int, Features | None], t: int) -> None:
        """Train the cloud part on real features of the round's clients, with their masks."""
        sent = [some for _, some in sorted(features.items()) if some is not None]
        if sent:
            maps, masks = torch.cat([some.maps for some in sent]), torch.cat([some.masks for some in sent])
            loss = functools.partial(decoder_loss, reduction=self.config.loss_reduction)
            self._fit(maps, masks, loss, generator(self.facts.seed, "cloud order", t), t)

    def _fit(
        self,
        features: Tensor,
        labels: Tensor,
        loss: Loss | None,
        draws: torch.Generator,
        t: int,
    ) -> None:
        self.start_round(t)
        assert self.learner is not None
        for rows in shuffled(len(labels), self.config.batch_size, self.config.cloud_epochs, draws):
            some = features[rows]
            self.host.loss(self.learner.forward(some), labels[rows].to(some.device), loss).backward()
            self.learner.step()
        self.finish_round()
