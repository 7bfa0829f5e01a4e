"""FedSGA: clients cut as deep as they need to, and the server makes features of all depths comparable.

FedSGA, CIKM 2026, https://arxiv.org/abs/2608.15639, Algorithm 2.

    client <-- blocks up to p_K, phi_s --- fed,  client <-- prototypes --- main     once a round
    client --- a, delta, q --> fed,  client <-- r, depth --- fed                    once a round
    client --- activations at its depth, labels --> main                            every step, all clients
    client <-- gradient of its own mean loss --- main                               every step
    client --- features at p_1 and p_ref, labels --> main                           calibration rounds
    client <-- two losses --- main,  client --- sufficient or not --> fed           calibration rounds
    client --- its blocks, n_k --> fed                                              once a round

    r = Gamma(a, delta, q, r_prev), rising in a and r_prev, falling in delta and q ;  k = ceil(K(1-r+rho))
    l_k = CE(G(Z), y) + lambda (-log softmax_y(cos(Z, C) / tau_a)),   Z = phi(Pool(h), e(p_k)),  C prototypes
    W_b <- mean over the copies of block b: of clients that cut above it, of the server for all others

Departs from the paper: a round is ``local_epochs`` passes at a fixed depth, decided from its first batch and
from last round's prompt gradients, since Algorithm 2 needs gradients before they exist. The probe compares
both depths after the round's training on a batch left out of it (``probe: start``, as printed, compares a
function with itself where blocks are averaged). The server runs the remaining backbone before it pools
(``server_body: none`` is the literal equation, without blocks above p_K). Losses are means, a server block
steps on the mean over the clients that pass through it (``server_reduce: sum`` as printed).
Client blocks are averaged block by block (``client_aggregation: none``: clients keep their prefixes).
Reconstructed, as the paper is silent: prompts of CNNs, which attend to each location behind the first block;
the training of phi_s (``phi_s: reuse_phi``: phi and e(p_1) come down with the prototypes instead); where r is
worked out (``estimator_location: client``: theta comes down, r and depth go up, inputs with labels only);
the sign of r_prev; drifts relative to the size of what drifts; the inits of projector and embeddings.
Evaluation, by itself, does see the mean of the prompts (``eval_prompt``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.sga import extending, interfaces
from rayfl.algorithms.sga.client import DepthClient
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.deciding import by_name
from rayfl.algorithms.sga.fed_server import DecidingServer
from rayfl.algorithms.sga.health import HEALTH, health, health_names
from rayfl.algorithms.sga.main_server import HarmonisingServer
from rayfl.algorithms.sga.probing import HELD_OUT
from rayfl.algorithms.sga.prompts import of_nobody
from rayfl.fleet import Fleet, Group, Parcel
from rayfl.models.blocks import Shape
from rayfl.pictures import ByClient, Picture


class FedSGA(Algorithm):
    """Sufficiency-guided adaptive depth."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SGAConfig):
        """FedSGA's knobs."""

        name: str = "fedsga"

    Client = DepthClient
    FedServer = DecidingServer
    MainServer = HarmonisingServer
    pictures: ClassVar[Mapping[str, Picture]] = {
        "depth": ByClient("fedsga/depth", "candidate cut of each client"),
        "health": HEALTH,
    }

    def __init__(self, config: Any, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self.interfaces = interfaces.named(fleet.blueprint.model())

    @classmethod
    def is_personal(cls, config: Config) -> bool:
        return config.client_aggregation == "none" or config.eval_prompt == "own"

    @classmethod
    def extended(cls, config: Config, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        return extending.extended(config, model, shape, seed)

    @classmethod
    def cut(cls, config: Config, model: nn.Sequential) -> dict[str, nn.Sequential]:
        return interfaces.parts(model)

    def round(self, t: int) -> None:
        clients = self.sample(t)
        steps = self.steps(clients, t)
        clients.receive(self.fed.weights(), t, self.scatter(steps))
        self.main.start_round(t)
        observations = clients.observe(self.main.prototypes())
        if self.config.decided_by_clients:
            self.fed.record(clients.decide(self.fed.parameters(clients.present())))
        else:
            clients.start(self.fed.decide(observations, t))
        if self.config.probe == "start":
            self.calibrate(clients, t)
        for active in self.lockstep(clients, steps):
            smashed = active.forward()
            gradients = self.main.train_step(smashed)
            active.backward(gradients)
        if self.config.probe != "start":
            self.calibrate(clients, t)
        for segment in range(1, len(self.interfaces) + 1):
            copy = self.main.copy(segment, clients.present())
            self.fed.average(segment, clients.pooled.segment(segment), copy)
        clients.finish()
        self.main.adopt(self.fed.weights())

    def steps(self, clients: Group, t: int) -> dict[int, int]:
        cycling = self.config.short_clients == "cycle"
        return self.equal_steps(clients) if cycling else super().steps(clients, t)

    def calibrate(self, clients: Group, t: int) -> None:
        """Now and then, ask whether the shallowest cut would have been good enough."""
        if not self.config.calibrates(t):
            return
        judged = clients.only(i for i in clients.ids if self.facts.num_samples[i] >= HELD_OUT)
        with self.fleet.phase("calibration"):
            losses = self.main.losses(judged.probe())
            self.fed.calibrate(judged.judge(losses))

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return self.fed.weights(), self.main.view(self.config.reference(len(self.interfaces)))

    def versions(self, t: int) -> list[tuple[float, tuple[Any, ...]]]:
        """One per depth in use, by the share of clients there: the depth's embedding is all that differs."""
        in_use = Counter(self.gather(self.fed.candidates()).values())
        own = self.gather(self.clients.prompts())
        shared, prompts = self.fed.weights(), of_nobody(own, none=self.config.eval_prompt == "none")
        return [
            (count / len(self.clients), (shared, self.main.view(depth), prompts))
            for depth, count in sorted(in_use.items())
        ]

    @classmethod
    def reported(cls, config: Config, model: nn.Sequential, num_clients: int, rounds: int) -> Iterable[str]:
        return health_names(config, interfaces.named(model), num_clients, rounds)

    def client_blocks(self, client: int) -> Sequence[str]:
        return self.interfaces[self.depths[client] - 1].blocks

    def report(self, t: int) -> dict[str, float]:
        """Depths, what they were decided by, and whether the mechanism is alive."""
        participants = self.sample(t)
        self.depths: dict[int, int] = self.gather(self.fed.candidates())
        found = self.gather(self.fed.report(participants.ids))
        if self.config.decided_by_clients:
            found |= by_name(self.gather(participants.estimated_from()))
        return health(found, self.gather(participants.report()), self.depths, self.interfaces)
