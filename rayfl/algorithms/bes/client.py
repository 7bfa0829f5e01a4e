"""BESplit's client: a split client that trains a small model of its own beside, with two teachers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl import cutting, roles, tree
from rayfl.algorithms.bes import objective
from rayfl.algorithms.bes.auxiliary import BODY, HEAD, LogAlpha, Pool
from rayfl.algorithms.bes.distillation import combined, evidence_losses, relation_loss
from rayfl.algorithms.bes.evidence import evidence
from rayfl.algorithms.bes.messages import Lesson
from rayfl.evaluation import evaluate
from rayfl.host import Host, Kept, Learner
from rayfl.messages import Gradient, SmashedBatch, Update, Weights
from rayfl.tasks import Score


class AssistedClient(roles.SplitClient):
    """Keeps its auxiliary model, and what trains it, from round to round."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.own: Weights = {}
        """The auxiliary model; empty as long as it is as it was made."""
        self.kept_own = Kept()
        self.student: Learner | None = None

    def receive(self, weights: Weights, t: int, steps: int | None = None) -> None:
        super().receive(weights, t, steps)
        self.t = t
        if self.config.dtd.enabled:
            self.student = Learner(self.host, "auxiliary", self.auxiliary(), t, self.kept_own)

    def auxiliary(self) -> Weights:
        """The auxiliary model between rounds."""
        return self.own or self.host.initial("auxiliary")

    def renew(self, average: Weights) -> None:
        """Go on from the average of auxiliary models."""
        self.own = {**self.auxiliary(), **average}

    def forward(self) -> SmashedBatch:
        assert self.learner is not None
        self.batch = next(self.batches)
        self.output = self.learner.forward(self.batch.inputs)
        return SmashedBatch(cutting.detached(self.output), self.batch.labels)

    def backward(self, gradient: Gradient) -> None:
        """Carry the gradient down, and let the auxiliary model learn from the same batch."""
        super().backward(gradient)
        if self.student is not None and not self.host.hollow:
            assert isinstance(gradient, Lesson)
            self.distil(self.student, gradient.evidence)

    def distil(self, student: Learner, teacher: Tensor | None) -> None:
        """One step of the auxiliary model; its teachers get no gradient."""
        config, labels = self.config.dtd, self.batch.labels
        features = student.forward(self.batch.inputs, BODY)
        logits = student.forward(features, HEAD)
        own = objective.reduced(self.host, logits, labels, self.t)
        nothing = torch.zeros((), dtype=torch.float64, device=own.device)
        alike, surely = nothing, nothing
        if config.lambda_c:
            pool = student.model[-2]
            assert isinstance(pool, Pool)
            assert isinstance(self.output, Tensor)
            alike = relation_loss(pool(self.output.detach()), features, config)
        if teacher is not None:
            surely = evidence_losses(teacher, evidence(logits, self.config.evidence), config).mean()
        if self.config.loss_reduction == "sum":
            alike, surely = len(labels) * alike, len(labels) * surely
        combined(own, alike, surely, config).backward()
        student.step()

    def update(self) -> Update:
        self._close_student(keep=bool(self.num_steps))
        return super().update()

    def abandon(self) -> None:
        self._close_student(keep=False)
        super().abandon()

    def _close_student(self, keep: bool) -> None:
        if self.student is None:
            return
        if keep:
            self.own = tree.clone(self.student.state)
        # Its weights are not replaced by an average, so its optimiser has no reason to start anew.
        kept = self.student.close(keep_optimizer=self.config.dtd.wa_sync == "none")
        self.kept_own, self.student = kept if keep else self.kept_own, None

    def auxiliary_update(self) -> Update:
        """The auxiliary model, to be averaged."""
        if not self.num_steps:
            return Update({}, 0.0)
        return Update(self.host.travels(self.own), self.config.mass(len(self.rows)))

    def score_auxiliary(self, *average: Weights) -> tuple[Score, Score]:
        """How the auxiliary model does on all test rows and on the client's own, as far as it is asked."""
        host, where = self.host, self.config.a_eval
        test, none = host.blueprint.test, np.zeros(0, dtype=np.int64)
        everything = none if where == "local" else np.arange(len(test), dtype=np.int64)
        mine = none if where == "global" else host.blueprint.client_test_rows[self.id]
        with host.frozen("auxiliary", {**self.auxiliary(), **(average[0] if average else {})}) as model:
            read = (
                nn.Sequential(model, LogAlpha(self.config.evidence)) if self.config.loss == "edl" else model
            )
            return evaluate(host, read, test, everything), evaluate(host, read, test, mine)

    def state_dict(self) -> dict[str, Any]:
        if not self.own:
            return super().state_dict()
        return {**super().state_dict(), "own": dict(self.own), "kept_own": self.kept_own.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.own, self.kept_own = rest.pop("own", {}), Kept(**rest.pop("kept_own", {}))
        super().load_state_dict(rest)
