"""H-SFP's cloud: the upper part of the model, trained on features drawn from the edges' moments."""

from collections.abc import Mapping

from rayfl import roles
from rayfl.algorithms.sfp.messages import Message
from rayfl.algorithms.sfp.prototypes import prototypes
from rayfl.algorithms.sfp.synthesis import shuffled
from rayfl.host import Host
from rayfl.seeding import generator


class MomentCloud(roles.MainServer):
    """Holds the cloud part, of which there is one."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.prototypes = prototypes(host, "main")

    def train_round(self, moments: Mapping[int, Message | None], t: int) -> None:
        """Draw from what the round's edges sent, and train the cloud part by the task's loss."""
        found = self.prototypes.sources(moments)
        if not found:
            return
        draws = generator(self.facts.seed, "cloud synthesis", t)
        features, labels = self.prototypes.draw(found, 1, draws)
        self.start_round(t)
        assert self.learner is not None
        for rows in shuffled(len(labels), self.config.batch_size, self.config.cloud_epochs, draws):
            some = features[rows]
            self.host.loss(self.learner.forward(some), labels[rows].to(some.device)).backward()
            self.learner.step()
        self.finish_round()
