"""FedSGA's client trains a prefix of the model at the depth of this round, and lets itself be probed."""

import torch

from rayfl import cutting, tree
from rayfl.algorithms.sga import probing
from rayfl.algorithms.sga.interfaces import HEAD, Part, segment
from rayfl.algorithms.sga.messages import DeepBatch, Probe, ProbeLosses, Verdict
from rayfl.algorithms.sga.observing import TOKENS, ObservingClient
from rayfl.data.augment import augmentation
from rayfl.host import Batch, Host
from rayfl.messages import Gradient, Update, Weights, weigh
from rayfl.tasks import Score
from rayfl.training import Rows


class DepthClient(ObservingClient):
    """Holds the blocks up to the deepest candidate; runs those up to its present depth."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.probe_rows = probing.ProbeRows(self.config, self.rows, self.facts.seed, index)
        self.crossed = 0

    def receive(self, weights: Weights, t: int, steps: int | None = None) -> None:
        self.crossed = 0
        super().receive(weights, t, steps)

    def training_rows(self, t: int) -> Rows:
        return self.probe_rows.training(t)

    def forward(self) -> DeepBatch:
        """The smashed data of the next batch at the present depth."""
        batch = self.ahead.pop(0) if self.ahead else next(self.batches)
        shallow = self.below.run(batch.inputs, 0, 1)
        self.signal_loss = self.aligning.loss(shallow, batch.labels)
        self.output = self.below.run(shallow, 1, self.depth)
        smashed = DeepBatch(cutting.detached(self.output), batch.labels, self.depth)
        self.crossed += weigh(smashed).total()
        return smashed

    def backward(self, gradient: Gradient) -> None:
        """Carry the gradient at the cut down, note what each prompt did for the loss, and step."""
        assert self.learner is not None
        self.crossed += weigh(gradient).total()
        cutting.backward(self.output, gradient.values)
        if self.signal_loss is not None:
            self.signal_loss.backward()
        if self.private:
            self.drifts.note(self.below.part.get_parameter(TOKENS))
        self.learner.step()

    def probe(self) -> Probe:
        """A batch at the shallowest and at the reference candidate."""
        first = self.config.probe == "start" and self.ahead
        batch = self.ahead[0] if first else self._probe_batch()
        return probing.probe(self.below, batch, self.config.reference(len(self.below.part.ends)))

    def _probe_batch(self) -> Batch:
        blueprint = self.host.blueprint
        augment = augmentation(blueprint.augment, self.facts.seed, self.t, self.id, -1)
        return self.host.batch(blueprint.train, self.probe_rows.probed(self.t), augment)

    def judge(self, losses: ProbeLosses) -> Verdict:
        """Whether the shallowest cut was good enough, with what its estimate was made of if that was here."""
        return probing.judged(losses, self.config.beta, self.inputs)

    def segment(self, number: int) -> Update:
        """The trained blocks between two candidates; nothing of those that this round did not reach."""
        assert self.learner is not None
        idle = number > self.depth or not self.num_steps
        if idle or self.config.client_aggregation == "none":
            return Update({}, 0.0)
        weights = self.host.travels(self.learner.state)
        chosen = {name: weights[name] for name in segment(self.below.part, number) if name in weights}
        return Update(tree.clone(chosen), self.config.mass(len(self.rows)))

    def finish(self) -> None:
        """Close the round; prompts, and what observes them, stay here."""
        assert self.learner is not None
        state = self.learner.state
        if self.config.client_aggregation == "none" and self.num_steps:
            names = [name for k in range(1, self.depth + 1) for name in segment(self.below.part, k)]
            self.own = tree.clone({name: state[name] for name in names})
        self.private = tree.clone({name: state[name] for name in self.private})
        self.drifts.close()
        self.batches.close()
        self.kept = self.learner.close()
        self.learner = None

    def report(self) -> tuple[float, int]:
        """The largest share that one prompt has in the descriptor; bytes that crossed the cut this round."""
        return self.drifts.largest_share(), self.crossed

    def score(self, *parts: Weights) -> tuple[Score, Score]:
        """With the client's own prompts, at its own depth."""
        held = self.host.parts["client"]
        assert isinstance(held, Part)
        depth = self.depth or self.config.reference(len(held.ends))
        own = {**parts[0], **self.own, **self.private}
        run = {name for number in range(1, depth + 1) for name in segment(held, number)}
        above = {name: value for name, value in parts[1].items() if name not in run}
        return super().score(own, {**above, f"{HEAD}.depth": torch.tensor(depth)})
