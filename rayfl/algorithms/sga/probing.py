"""Whether the shallowest cut would have been good enough: two losses of one batch (FedSGA, eq. 7)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.messages import Probe, ProbeLosses, Verdict
from rayfl.algorithms.sga.sides import Above, Below
from rayfl.host import Batch, evaluating
from rayfl.seeding import numpy_generator
from rayfl.training import Rows

HELD_OUT = 4
"""A client keeps one in so many samples, a batch at most, from training in a round that ends on a probe."""


@dataclass(frozen=True)
class ProbeRows:
    """Which of a client's samples its probes go by: a pure function of (seed, round, client)."""

    config: SGAConfig
    rows: Rows
    seed: int
    client: int

    def training(self, t: int) -> Rows:
        """All but the batch that round ``t`` is going to be judged by."""
        if self.config.probe == "end" and self.config.calibrates(t):
            return np.setdiff1d(self.rows, self.held_out(t))
        return self.rows

    def held_out(self, t: int) -> Rows:
        """A batch that round ``t`` doesn't train on; empty for a client that can't spare one."""
        return self._drawn(t, min(self.config.batch_size, len(self.rows) // HELD_OUT))

    def probed(self, t: int) -> Rows:
        """The probe's batch; of a linear probe's one half fits, the other is judged."""
        if self.config.probe == "linear":
            return self._drawn(t, min(max(self.config.batch_size, 2), len(self.rows)))
        return self.held_out(t)

    def _drawn(self, t: int, count: int) -> Rows:
        generator = numpy_generator(self.seed, "probe", t, self.client)
        return np.sort(generator.choice(self.rows, count, replace=False))


def probe(below: Below, batch: Batch, reference: int) -> Probe:
    """A batch at the shallowest and at the reference candidate, in evaluation mode."""
    with evaluating(below.part):
        shallow = below.run(batch.inputs, 0, 1)
        return Probe(shallow, below.run(shallow, 1, reference), batch.labels)


def path_losses(above: Above, probes: Mapping[int, Probe], reference: int) -> dict[int, ProbeLosses]:
    """What the classes cost by the server's own path from either depth, without training on it."""
    task, found = above.learner.host.task, {}
    with evaluating(above.part):
        for client, one in probes.items():
            pair = [(one.shallow, 1), (one.reference, reference)]
            logits = [above.logits(above.embed(features, depth)) for features, depth in pair]
            found[client] = ProbeLosses(*(task.loss(each, one.labels, "mean").item() for each in logits))
    return found


def judged(losses: ProbeLosses, beta: float, inputs: tuple[float, ...]) -> Verdict:
    """Whether the shallowest candidate is within the tolerance of the reference (eq. 7)."""
    sufficient = losses.shallow <= (1 + beta) * losses.reference
    return Verdict(sufficient, losses.shallow / max(losses.reference, 1e-12), inputs)
