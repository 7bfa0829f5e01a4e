"""BESplit: clients count by their evidence, train each other's server-side models, and keep a small one.

Xie, Lyu, Huang, "BESplit: Bias-Compensated Split Federated Learning with Evidential Aggregation", ICML 2026,
https://arxiv.org/abs/2605.17508.

    client --- activations, labels --> main                         every batch
    client <-- gradient at the cut, teacher's evidence --- main     every batch
    client <-- w_C --- fed,  client --- w_C,k, n_k --> fed          once a round

    e = exp(logits), alpha = 1 + e, S = sum_c alpha_c,   l = psi(S) - psi(alpha_y) + lambda_t KL(others)
    EA   w_k ~ mean_c Ev_k[c,c] / sum_j Ev_k[c,j] x exp(-u_aleatoric - u_epistemic) ; w_C <- sum_k w_k w_C,k
    BCC  d = P_k - P_g ;  rho = |d_i| / (|d_i| + |d_j|) if w_i > w_j, |d_j| / (|d_i| + |d_j|) if w_j > w_i
         L_i ~ sum (1 - rho_y) l(W_S,i(z_i)) + sum rho_y l(W_S,i(z_j)),   g_i = d(L_i + L_j) / dz_i
    DTD  L_A = l + lambda_C ||R(F_A) - R(F_C)||^2 / b^2 + lambda_G KL(Dir(1 + e_T/tau) || Dir(1 + e_A/tau))

Departs from the paper: the text at hand names these formulas and prints none. Reconstructed, with other
readings as options: evidence as exp of logits (``evidence.act``: softplus can't get sure of anything in time)
and the weight of its KL term; concentration as the share on the true class over all classes, seen or not, and
what is taken off for doubt, where vacuity stands for epistemic uncertainty (``ea``, ``evidence.epistemic``);
who is biased (``bcc.bias_threshold``) and greedy pairs by gain; fractions by class, at most a half, the least
of equally good ones; the exchange as weights of losses (``bcc.mode``); the auxiliary model as the client-side
model's blocks, means over a 4x4 grid and a linear layer, and both losses of its teachers (``dtd``). Chosen:
the first round has no pairs; a class is exchanged where its giver has it in the batch; the evidence teacher
is the round's first server-side model (``dtd.teacher``), and what it says is charged on the wire, where the
paper counts nothing; auxiliary models begin as the first client-side model and are never averaged
(``dtd.wa_sync``), nor are their optimisers renewed. As the paper doesn't say on which rows they are scored,
``auxiliary/local_*`` is on their clients' test rows, ``auxiliary/global_*`` on all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.bes import auxiliary
from rayfl.algorithms.bes.client import AssistedClient
from rayfl.algorithms.bes.config import BESConfig
from rayfl.algorithms.bes.fed_server import WeighingServer
from rayfl.algorithms.bes.health import PICTURES, health, health_names
from rayfl.algorithms.bes.main_server import EvidentialServer
from rayfl.fleet import Parcel
from rayfl.models.blocks import Shape
from rayfl.pictures import Picture


class BESplit(Algorithm):
    """Evidential aggregation, bias-compensated collaboration, dual-teacher distillation."""

    @dataclass(frozen=True, kw_only=True)
    class Config(BESConfig):
        """BESplit's knobs."""

        name: str = "besplit"

    Client = AssistedClient
    FedServer = WeighingServer
    MainServer = EvidentialServer
    pictures: ClassVar[Mapping[str, Picture]] = PICTURES

    @classmethod
    def extended(cls, config: Config, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        return auxiliary.extended(config, model, shape, seed)

    @classmethod
    def cut(cls, config: Config, model: nn.Sequential) -> dict[str, nn.Sequential]:
        client, main = auxiliary.parts(config, model)
        own = {"auxiliary": auxiliary.auxiliary(model, client)} if config.dtd.enabled else {}
        return {"client": client, "main": main, **own}

    def round(self, t: int) -> None:
        clients = self.sample(t)
        if self.synced:
            clients.renew(self.fed.auxiliary())
        clients.receive(self.fed.weights(), t)
        self.main.receive(self.main.weights(), t)
        self.main.match(clients.ids)
        for active in self.lockstep(clients):
            smashed = active.forward()
            lessons = self.main.train_step(smashed)
            active.backward(lessons)
        updates, weights = clients.update(), self.main.weigh(clients.present())
        self.fed.average(updates, weights)
        self.main.aggregate(self.main.pooled.weighed_updates(weights))
        if self.synced:
            self.fed.average_auxiliary(clients.auxiliary_update(), weights)

    @property
    def synced(self) -> bool:
        """Whether auxiliary models are averaged too."""
        return bool(self.config.dtd.enabled and self.config.dtd.wa_sync == "fedavg")

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.fed.weights(), self.main.weights()

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        everybody = self.scatter(dict.fromkeys(self.clients.ids))
        return self.fed.weights(), self.main.personal_weights(everybody, self.main.weights())

    def beside(self, t: int) -> dict[str, Parcel]:
        if not self.config.dtd.enabled:
            return {}
        average = (self.fed.auxiliary(),) if self.synced else ()
        return {"auxiliary": self.clients.score_auxiliary(*average)}

    @classmethod
    def reported(cls, config: Config, model: nn.Sequential, num_clients: int, rounds: int) -> Iterable[str]:
        return health_names(config, num_clients, rounds)

    def report(self, t: int) -> dict[str, float]:
        """Weights, doubt, pairs and label bias."""
        return health(*self.gather(self.main.report()))
