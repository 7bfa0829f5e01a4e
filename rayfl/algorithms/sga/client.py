"""FedSGA's client: observes itself, trains a prefix of the depth it is told, keeps its prompts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfl import cutting, roles, tree
from rayfl.algorithms.sga import prompts as prompting
from rayfl.algorithms.sga.interfaces import HEAD, PROMPTS, SIGNAL, Part, evaluating, segment
from rayfl.algorithms.sga.messages import Decision, DeepBatch, Probe, ProbeLosses, Verdict
from rayfl.algorithms.sga.prototypes import Prototypes
from rayfl.algorithms.sga.signals import Observation, Signal, moved
from rayfl.data.augment import augmentation
from rayfl.host import Batch, Host
from rayfl.messages import Gradient, Update, Weights, weigh
from rayfl.seeding import numpy_generator
from rayfl.tasks import Score
from rayfl.training import Rows

HELD_OUT = 4
"""A client keeps one in so many samples, a batch at most, from training in a round that ends on a probe."""


class DepthClient(roles.SplitClient):
    """Holds the blocks up to the deepest candidate; runs those up to its present depth."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.private = {
            name: value for name, value in host.initial("client").items() if name.startswith(f"{PROMPTS}.")
        }
        """The prompts, which no other party ever gets in training."""
        self.own: Weights = {}
        """The prefix that stays with the client (``client_aggregation: none``)."""
        self.depth, self.crossed = 0, 0
        self.feature: Tensor | None = None
        self.descriptor: Tensor | None = None
        self.scores: Tensor | None = None

    def receive(self, weights: Weights, t: int, steps: int | None = None) -> None:
        """Open round ``t``: shared blocks come, prompts are the client's own."""
        self.t, self.crossed = t, 0
        self.ahead: list[Batch] = []
        self.signed: list[Tensor] = []
        super().receive({**weights, **self.own, **self.private}, t, steps)

    def training_rows(self, t: int) -> Rows:
        """All but the batch that the round is going to be judged by."""
        if self.config.probe == "end" and self.config.calibrates(t):
            return np.setdiff1d(self.rows, self.held_out(t))
        return self.rows

    def held_out(self, t: int) -> Rows:
        """A batch that round ``t`` doesn't train on; empty for a client that can't spare one."""
        return self._drawn(t, min(self.config.batch_size, len(self.rows) // HELD_OUT))

    def _drawn(self, t: int, count: int) -> Rows:
        drawn = numpy_generator(self.facts.seed, "probe", t, self.id).choice(self.rows, count, replace=False)
        return np.sort(drawn)

    @property
    def part(self) -> Part:
        """The client-side blocks."""
        assert isinstance(self.model, Part)
        return self.model

    @property
    def signal(self) -> Signal:
        """The block behind p_1."""
        found = self.part.get_submodule(SIGNAL)
        assert isinstance(found, Signal)
        return found

    def observe(self, prototypes: Prototypes) -> Observation:
        """Alignment, feature drift and prompt drift on the round's first batches (eqs. 2 to 5)."""
        self.prototypes = prototypes
        if not self.num_steps:
            return Observation(torch.zeros(()), None, None)
        shallow, labels = [], []
        with evaluating(self.part):
            for _ in range(min(self.config.obs_batches, self.num_steps)):
                batch = next(self.batches)
                self.ahead.append(batch)
                shallow.append(self.signal.pooled(self._run(batch.inputs, 0, self.part.ends[0])))
                labels.append(batch.labels)
            features = torch.cat(shallow).to(prototypes.directions.dtype)
            alignment = prototypes.alignment(self.signal.project(features), torch.cat(labels))
        feature, last = features.mean(0), self.feature
        relative = self.config.obs_norm == "relative"
        drift, self.feature = moved(feature, last, relative), feature
        return Observation(alignment, drift, self._prompt_drift(relative, first=last is None))

    def _prompt_drift(self, relative: bool, first: bool) -> Tensor | None:
        if not self.private:
            return torch.zeros(())
        tokens = self._tokens()
        scores = torch.zeros(len(tokens)).to(tokens) if self.scores is None else self.scores
        descriptor = prompting.descriptor(tokens, self._alpha(scores))
        drift, self.descriptor = moved(descriptor, self.descriptor, relative), descriptor
        return None if first else drift

    def _alpha(self, scores: Tensor) -> Tensor:
        return prompting.importance(scores, self.config.tau_m, self.config.score_norm)

    def _tokens(self) -> Tensor:
        return self.private[f"{PROMPTS}.tokens"]

    def start(self, decision: Decision) -> None:
        """Train at this depth until the round ends."""
        self.depth = decision.depth

    def forward(self) -> DeepBatch:
        """The smashed data of the next batch at the present depth."""
        batch = self.ahead.pop(0) if self.ahead else next(self.batches)
        first, last = self.part.ends[0], self.part.ends[self.depth - 1]
        shallow = self._run(batch.inputs, 0, first)
        self.signal_loss = self._signal_loss(shallow, batch.labels)
        self.output = shallow if first == last else self._run(shallow, first, last)
        smashed = DeepBatch(cutting.detached(self.output), batch.labels, self.depth)
        self.crossed += weigh(smashed).total()
        return smashed

    def _run(self, inputs: Tensor, start: int, stop: int) -> Any:
        assert self.learner is not None
        return self.learner.forward(inputs, slice(start, stop))

    def _signal_loss(self, shallow: Tensor, labels: Tensor) -> Tensor | None:
        """What trains phi_s, and nothing else."""
        if self.config.phi_s != "learned" or not self.config.adaptive:
            return None
        projected = self.signal.project(self.signal.pooled(shallow).to(self.prototypes.directions.dtype))
        if self.config.phi_loss == "cos":
            return self.prototypes.cosine_loss(projected, labels)
        return self.prototypes.contrastive_loss(projected, labels, self.config.tau_a)

    def backward(self, gradient: Gradient) -> None:
        """Carry the gradient at the cut down, note what each prompt did for the loss, and step."""
        assert self.learner is not None
        self.crossed += weigh(gradient).total()
        cutting.backward(self.output, gradient.values)
        if self.signal_loss is not None:
            self.signal_loss.backward()
        if self.private:
            tokens = self.part.get_parameter(f"{PROMPTS}.tokens")
            assert tokens.grad is not None
            self.signed.append(prompting.contributions(tokens, tokens.grad))
        self.learner.step()

    def probe(self) -> Probe:
        """A batch at the shallowest and at the reference candidate, in evaluation mode."""
        batch = self._probe_batch()
        ends = self.part.ends
        with evaluating(self.part):
            shallow = self._run(batch.inputs, 0, ends[0])
            reference = self._run(shallow, ends[0], ends[self.config.reference(len(ends)) - 1])
        return Probe(shallow, reference, batch.labels)

    def _probe_batch(self) -> Batch:
        if self.config.probe == "start" and self.ahead:
            return self.ahead[0]
        rows, blueprint = self.held_out(self.t), self.host.blueprint
        if self.config.probe == "linear":
            # One half fits, the other is judged.
            rows = self._drawn(self.t, min(max(self.config.batch_size, 2), len(self.rows)))
        augment = augmentation(blueprint.augment, self.facts.seed, self.t, self.id, -1)
        batch: Batch = self.host.batch(blueprint.train, rows, augment)
        return batch

    def judge(self, losses: ProbeLosses) -> Verdict:
        """Whether the shallowest candidate is within the tolerance of the reference (eq. 7)."""
        sufficient = losses.shallow <= (1 + self.config.beta) * losses.reference
        return Verdict(sufficient, losses.shallow / max(losses.reference, 1e-12))

    def segment(self, number: int) -> Update:
        """The trained blocks between two candidates; nothing of those that this round did not reach."""
        assert self.learner is not None
        idle = number > self.depth or not self.num_steps
        if idle or self.config.client_aggregation == "none":
            return Update({}, 0.0)
        weights = self.host.travels(self.learner.state)
        chosen = {name: weights[name] for name in segment(self.part, number) if name in weights}
        return Update(tree.clone(chosen), self.config.mass(len(self.rows)))

    def finish(self) -> None:
        """Close the round; prompts, and what observes them, stay here."""
        assert self.learner is not None
        state = self.learner.state
        if self.config.client_aggregation == "none" and self.num_steps:
            names = [name for k in range(1, self.depth + 1) for name in segment(self.part, k)]
            self.own = tree.clone({name: state[name] for name in names})
        self.private = tree.clone({name: state[name] for name in self.private})
        if self.signed:
            steps = torch.stack(self.signed)
            mean_abs = self.config.score_reduce == "mean_abs"
            self.scores = steps.abs().mean(0) if mean_abs else steps.mean(0).abs()
        self.batches.close()
        self.kept = self.learner.close()
        self.learner = None

    def abandon(self) -> None:
        self.ahead, self.signed = [], []
        super().abandon()

    def prompts(self) -> Weights:
        """The private prompts, for scoring alone."""
        return self.private

    def report(self) -> tuple[float, int]:
        """The largest share that one prompt has in the descriptor; bytes that crossed the cut this round."""
        alpha = 0.0 if self.scores is None else self._alpha(self.scores).max().item()
        return alpha, self.crossed

    def score(self, *parts: Weights) -> tuple[Score, Score]:
        """With the client's own prompts, at its own depth."""
        held = self.host.parts["client"]
        assert isinstance(held, Part)
        depth = self.depth or self.config.reference(len(held.ends))
        own = {**parts[0], **self.own, **self.private}
        run = {name for number in range(1, depth + 1) for name in segment(held, number)}
        above = {name: value for name, value in parts[1].items() if name not in run}
        return super().score(own, {**above, f"{HEAD}.depth": torch.tensor(depth)})

    def state_dict(self) -> dict[str, Any]:
        state = {"private": self.private, "own": self.own, "depth": self.depth, "feature": self.feature,
                 "descriptor": self.descriptor, "scores": self.scores}  # fmt: skip
        kept = {key: value for key, value in state.items() if value is not None and value != {}}
        return {**super().state_dict(), **({} if self.depth == 0 else kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        for name in ("private", "own", "depth", "feature", "descriptor", "scores"):
            if name in rest:
                setattr(self, name, rest.pop(name))
        super().load_state_dict(rest)
