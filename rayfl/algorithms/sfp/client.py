"""H-SFP's client: learns features by contrast, and sends what their classes look like."""

import functools

import numpy as np
import torch
from torch import Tensor

from rayfl.algorithms.hsfl import HSFL
from rayfl.algorithms.sfp.messages import Features, Message
from rayfl.algorithms.sfp.prototypes import prototypes
from rayfl.data.augment import augmentation
from rayfl.data.prefetch import Stream
from rayfl.evaluation import in_batches
from rayfl.host import Batch, Host
from rayfl.training import batches


class MomentClient(HSFL.Client):
    """Keeps its own client part and optimiser from round to round."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.prototypes = prototypes(host, "client")

    def train_round(self, t: int) -> None:
        """A round of contrastive training on the client's own data."""
        self.start_round(t)
        assert self.learner is not None
        self.objective = self.prototypes.objective(self.learner.lr, t, self.id)
        for batch in self.batches:
            loss = self.loss(batch)
            if loss.requires_grad:
                loss.backward()
                self.learner.step()
                self.objective.step()
        self.finish_round()

    def loss(self, batch: Batch) -> Tensor:
        """The contrast of a batch; without graph where it asks for no step."""
        assert self.learner is not None
        # All but the last block, which narrows maps for their moments alone.
        features = self.learner.forward(batch.inputs, slice(None, -1))
        return self.objective.loss(features, batch.labels)

    def _batches(self, t: int, steps: int) -> Stream[Batch]:
        host, facts, blueprint = self.host, self.facts, self.host.blueprint
        rows = batches(self.config, self.rows, steps, facts.batch_norm, facts.seed, t, self.id)
        copies = 1 if blueprint.augment == "supcon" else self.config.views
        return host.prefetcher.stream(
            functools.partial(
                host.batch,
                blueprint.train,
                np.tile(chosen, copies),
                augmentation(blueprint.augment, facts.seed, t, self.id, step),
            )
            for step, chosen in enumerate(rows)
        )

    def features(self) -> Features | None:
        """Those of all of the client's samples themselves, with their masks."""
        with self.host.frozen("client", self.own) as model:
            found = [
                (model(batch.inputs), batch.labels)
                for _, batch in in_batches(self.host, self.host.blueprint.train, self.rows)
            ]
        return Features(*map(torch.cat, zip(*found, strict=True))) if found else None

    def moments(self) -> Message | None:
        """Of the features of all of the client's samples, as they are, by the client part as it is."""
        with self.host.frozen("client", self.own) as model:
            return self.prototypes.describe(
                (model(batch.inputs), self.prototypes.labels(batch, rows))
                for rows, batch in in_batches(self.host, self.host.blueprint.train, self.rows)
            )
