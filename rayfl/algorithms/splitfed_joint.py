"""SplitFed with one joint server step: the server-side model steps once on the batches of all clients.

The SplitFed of Thapa et al., AAAI 2022, https://arxiv.org/abs/2004.12088, in the form that FedSGA
(https://arxiv.org/abs/2608.15639, eqs. 9-10) trains its server-side model.

    client --- activations, labels --> main     every step, all clients
    client <-- gradient of its own mean loss at the cut --- main     every step
    client <-- w_C --- fed,  client --- w_C,k, n_k --> fed           once a round

    w_S <- w_S - eta (1/m) sum_k grad l_k ;   client k gets d l_k / d z_k, undivided

Departs from the paper: the printed sum over clients is a mean (``loss_norm: sum`` is the printed form).
Every client makes the same number of steps, the mean of what their data amount to; short clients reshuffle
(``short_clients: drop_out`` ends them early, and then the last steps follow a few clients' labels).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from rayfl import roles
from rayfl.algorithms.sga.heads import with_harmoniser
from rayfl.algorithms.splitfed_v1 import SplitConfig
from rayfl.algorithms.splitfed_v2 import SplitFedV2
from rayfl.fleet import Group
from rayfl.messages import Gradient, SmashedBatch
from rayfl.models.blocks import Shape
from rayfl.roles import per_client


class SplitFedJoint(SplitFedV2):
    """One server-side model, one step on everybody's batches."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitConfig):
        """SplitFed joint's knobs."""

        name: str = "splitfed_joint"
        loss_norm: Literal["per_client_mean", "merged_mean", "sum"] = "per_client_mean"
        """A client's share of the server's gradient: equal, by batch size, or 1."""
        short_clients: Literal["cycle", "drop_out"] = "cycle"
        """Whether clients with few batches reshuffle and go on, or end early."""
        head: Literal["backbone", "harmoniser"] = "backbone"
        """The backbone's own last layer, or FedSGA's projector and head, to compare the two with."""

    @classmethod
    def extended(cls, config: Config, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        return model if config.head == "backbone" else with_harmoniser(model, seed)

    class MainServer(roles.MainServer):
        """Steps once for all clients that are present."""

        @per_client
        def train_step(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
            """One step on the mean of the clients' losses."""
            assert self.learner is not None
            if not smashed:
                return {}
            sizes = {client: len(batch.labels) for client, batch in smashed.items()}
            norm: str = self.config.loss_norm
            shares = {
                "per_client_mean": dict.fromkeys(sizes, 1 / len(sizes)),
                "merged_mean": {client: size / sum(sizes.values()) for client, size in sizes.items()},
                "sum": dict.fromkeys(sizes, 1.0),
            }[norm]
            gradients = {
                client: self.backpropagate(self.learner, batch, shares[client])
                for client, batch in smashed.items()
            }
            self.learner.step()
            return gradients

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
        return (
            self.equal_steps(clients) if self.config.short_clients == "cycle" else super().steps(clients, t)
        )
