"""H-SFP: three tiers that train apart, on what classes look like in the tier below.

"Hierarchical Federated Learning with Decoupled Split-Model Prototyping", ECCV 2026: the paper's formulas, and
its authors' settings where it is silent. The contrast is that of Khosla et al. 2020,
https://arxiv.org/abs/2004.11362.

    client --- ids, counts, means, stds by class --> edge --- the same of its outputs --> main     every round
    client --- W_c, n_k --> edge,  client <-- average --- edge      every I_c rounds
    edge --- W_e, W_c, n --> fed,  edge <-- averages --- fed        every I_e rounds

    client:  W_c by -(1/|V|) sum_i (1/|P(i)|) sum_{p in P(i)} log softmax_a(z_i . z_a / tau)[p],
             then mu_j, sigma_j of z = W_c(x) by class
    edge:    z = mu_j + sqrt(sigma_j^2 + eps) xi,  50 a class;  W_e by the same loss;  mu_j, sigma_j of W_e(z)
    cloud:   the same draws;  W_g by cross-entropy

Departs from the paper: moments of several places are pooled to those of the union (``pooling: paper_eq5`` as
printed); averages come before moments are taken (``avg_order: after`` as printed), so that the cloud's part
fits the model that is scored; the edge part has GroupNorm in BatchNorm's place. Reconstructed, as the paper
is silent: client parts are averaged over edges with the edges' own; a client takes up the last average when
it takes part; an edge's two views are two draws. Of ``low_rank`` and ``full`` the paper knows nothing.

Where the task is segmentation all is a design of ours. Its authors' code (``seg_mode: repo_image_label``)
labels whole images; its cloud trains the decoder on real features and masks, so activations of every sample
cross both links, against the method's own premise. Here a class is of a position: moments are of channels
over all positions of lesion, and of background. Beside them goes a Gaussian of the lesions' ellipses, 12
numbers and 2 counts. Edges and cloud draw masks from it, and for each a map whose positions are drawn by
class, with noise alike between neighbours; contrast is of up to 256 positions a step, evenly by class.
"""

from dataclasses import dataclass

from torch import nn

from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.hsfl import HSFL
from rayfl.algorithms.sfp import spaces
from rayfl.algorithms.sfp.client import MomentClient
from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.edge_server import MomentEdge
from rayfl.algorithms.sfp.main_server import MomentCloud
from rayfl.fleet import Group, Parcel
from rayfl.models.blocks import Shape


class HSFP(Algorithm):
    """Client, edge and cloud parts, joined by moments alone."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HSFPConfig):
        """H-SFP's knobs."""

        name: str = "hsfp"

    Client = MomentClient
    EdgeServer = MomentEdge
    MainServer = MomentCloud
    FedServer = HSFL.FedServer

    @classmethod
    def is_personal(cls, config: Config) -> bool:
        return config.intervals[0] is None

    @classmethod
    def extended(cls, config: Config, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        return spaces.extended(config, model, shape, seed)

    @classmethod
    def cut(cls, config: Config, model: nn.Sequential) -> dict[str, nn.Sequential]:
        return spaces.parts(model)

    def round(self, t: int) -> None:
        clients = self.sample(t)
        edges = self.edges.only(self.facts.client_edges[i] for i in clients.ids)
        early = self.config.avg_order == "before"
        self.refresh(clients, t)
        clients.train_round(t)
        if early:
            self.average_clients(clients, t)
        edges.train_round(clients.moments(), t)
        if early:
            self.average_edges(t)
        if self.facts.task == "segmentation" and self.config.seg_mode == "repo_image_label":
            self.main.train_on_features(edges.features(clients.features()), t)
        else:
            self.main.train_round(edges.moments(), t)
        if not early:
            self.average_clients(clients, t)
            self.average_edges(t)

    def average_clients(self, clients: Group, t: int) -> None:
        """On schedule: within edges, then over them."""
        every_client, every_edge = self.config.intervals
        if not every_client or self.last_average(t) < t:
            return
        recent = self.clients.only(self.taken_part(t - every_client, t))
        if t % every_client == 0:
            self.edges.average_clients(recent.send())
        if self.config.client_avg_scope == "hierarchical" and every_edge and t % every_edge == 0:
            self.fed.average_clients(self.edges.send_clients())
            self.edges.replace_clients(self.fed.weights())
        lazy = clients if self.config.avg_order == "before" else clients.only(())
        now = {"lazy": lazy, "participants": recent, "all": self.clients}[self.config.distribute]
        now.replace(self.edges.client_weights())

    def average_edges(self, t: int) -> None:
        """On schedule: over edges, by the samples of those that took part since the last time."""
        every = self.config.intervals[1]
        if every and t % every == 0:
            self.edges.replace(self.fed.average_edges(self.edges.send()))

    def refresh(self, clients: Group, t: int) -> None:
        """Hand the first models out, and later averages to those that haven't got the last one."""
        every_client, every_edge = self.config.intervals
        if t == 1 and every_edge:
            self.edges.replace(self.fed.edge_weights())
        if not every_client:
            return
        if t == 1:
            self.edges.replace_clients(self.fed.weights())
        last = self.last_average(t - 1)
        if self.config.distribute == "all" and last:
            return
        since = last if self.config.distribute == "lazy" else 0
        if since and self.config.avg_order == "before":
            since -= 1
        have_it = self.taken_part(since, t - 1)
        clients.only(set(clients.ids) - have_it).replace(self.edges.client_weights())

    def last_average(self, t: int) -> int:
        """The last round up to ``t`` that averages client parts, within edges or over them; 0 for none."""
        scope, (every_client, every_edge) = self.config.client_avg_scope, self.config.intervals
        intervals: tuple[int | None, ...] = (every_client, every_edge if scope == "hierarchical" else None)
        return max(t - t % every for every in intervals if every)

    def taken_part(self, after: int, until: int) -> set[int]:
        """Clients of the rounds behind ``after`` up to ``until``."""
        return {i for t in range(max(after, 0) + 1, until + 1) for i in self.sample(t).ids}

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        if t == 0:
            return self.fed.weights(), self.fed.edge_weights(), self.main.weights()
        if self.config.intervals[0]:
            below = self.fed.preview_clients(self.edges.send_clients())
        else:
            below = self.fed.preview_clients(self.clients.only(self.taken_part(0, t)).pooled.send())
        return below, self.fed.preview_edges(self.edges.send()), self.main.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        return self.edges.weights(), self.main.weights()
