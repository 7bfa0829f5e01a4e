"""H-SFP's cloud: a classifier trained on features drawn from the edges' moments."""

from collections.abc import Mapping

from rayfl import roles
from rayfl.algorithms.sfp.messages import ClassMoments
from rayfl.algorithms.sfp.synthesis import shuffled, sources, synthesise
from rayfl.seeding import generator


class MomentCloud(roles.MainServer):
    """Holds the cloud part, of which there is one."""

    def learn(self, moments: Mapping[int, ClassMoments | None], t: int) -> None:
        """Draw from what the round's edges sent, and train the cloud part by the task's loss."""
        found = sources(moments, self.config)
        if not found:
            return
        draws = generator(self.facts.seed, "cloud synthesis", t)
        features, labels = synthesise(found, self.config, draws)
        self.start_round(t)
        assert self.learner is not None
        for rows in shuffled(len(labels), self.config.batch_size, self.config.cloud_epochs, draws):
            self.host.loss(self.learner.forward(features[rows]), labels[rows]).backward()
            self.learner.step()
        self.finish_round()
