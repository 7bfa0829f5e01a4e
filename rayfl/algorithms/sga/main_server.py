"""FedSGA's main server: one model for features of all depths, one step on everybody's batches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rayfl import cutting, roles, tree
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead, shallowest
from rayfl.algorithms.sga.interfaces import HEAD, SIGNAL, Part, segment
from rayfl.algorithms.sga.linear_probe import probe_losses
from rayfl.algorithms.sga.messages import DeepBatch, Probe, ProbeLosses
from rayfl.algorithms.sga.probing import path_losses
from rayfl.algorithms.sga.prototypes import PrototypeMemory, Prototypes
from rayfl.algorithms.sga.reducing import rescale, together
from rayfl.algorithms.sga.sides import Above
from rayfl.algorithms.sga.signals import Signal, pooled
from rayfl.cutting import Values
from rayfl.host import Host
from rayfl.messages import Gradient, Update, Weights
from rayfl.roles import per_client


class HarmonisingServer(roles.MainServer):
    """Holds the blocks above the shallowest candidate, the harmoniser and the prototypes."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        config, head = self.config, host.parts["main"][-1]
        assert isinstance(head, Harmoniser | PlainHead)
        like = head.classifier.weight.detach()
        self.memory = PrototypeMemory(host.facts.num_classes, head.d_z, config.proto_momentum, like)
        self.depths: dict[int, int] = {}
        below = host.parts["client"]
        signal = below.get_submodule(SIGNAL)
        assert isinstance(below, Part)
        assert isinstance(signal, Signal)
        self.below, self.signal = below, signal

    def start_round(self, t: int) -> None:
        super().start_round(t)
        self.depths = {}

    @property
    def above(self) -> Above:
        """The blocks in training, with the head."""
        assert self.learner is not None
        return Above(self.learner, self.signal)

    def prototypes(self) -> Prototypes:
        """Those that hold through this round, with the projector where clients go by it."""
        if self.config.phi_s != "reuse_phi":
            return self.memory.current
        # A copy: training changes them in place.
        projector = tree.clone(shallowest(self.above.head.state_dict()))
        return replace(self.memory.current, projector=projector)

    @per_client
    def train_step(self, batches: Mapping[int, DeepBatch]) -> dict[int, Gradient]:
        """One step on the clients' losses; each client gets the gradient of its own."""
        assert self.learner is not None
        if not batches:
            return {}
        self.depths.update({client: batch.depth for client, batch in batches.items()})
        masses = {client: self.config.mass(self.facts.num_samples[client]) for client in batches}
        total = sum(masses.values())
        shares = {client: mass / total for client, mass in masses.items()}
        if self.config.server_reduce == "sum":
            shares = dict.fromkeys(batches, 1.0)
        gradients: dict[int, Gradient] = {}
        for group in together(batches, merged=self.config.server_bn == "merged"):
            inputs, losses = self._forward(group)
            torch.stack([losses[client] * shares[client] for client in group]).sum().backward()
            for client in group:
                gradients[client] = self.answer(inputs[client], shares[client])
        if self.config.server_reduce == "block_mean":
            rescale(self.above.part, {client: batches[client].depth for client in batches}, masses)
        self.learner.step()
        if self.config.proto_update == "step":
            self.memory.move()
        return {client: gradients[client] for client in batches}

    def _forward(self, group: Mapping[int, DeepBatch]) -> tuple[dict[int, Values], dict[int, Tensor]]:
        """What came in of clients at one depth, collecting gradients, and their losses."""
        inputs = {client: cutting.entering(batch.activations) for client, batch in group.items()}
        depth = next(iter(group.values())).depth
        several = len(group) > 1
        merged = cutting.merged(list(inputs.values())) if several else next(iter(inputs.values()))
        above = self.above
        embedded = above.embed(merged, depth)
        sizes = [len(batch.labels) for batch in group.values()]
        losses = {}
        for client, part in zip(group, embedded.split(sizes), strict=True):
            labels = group[client].labels
            self.memory.add(part, labels)
            loss = self.host.loss(above.logits(part), labels)
            if self.config.align:
                prototypes = self.memory.current
                loss = loss + self.config.align * prototypes.contrastive_loss(
                    part.to(prototypes.directions.dtype), labels, self.config.tau_a
                )
            losses[client] = loss
        return inputs, losses

    @per_client
    def losses(self, probes: Mapping[int, Probe]) -> dict[int, ProbeLosses]:
        """What the classes cost from either depth of each probe, without training on it."""
        if self.config.probe == "linear":
            how = self.signal.pool, self.signal.num_prompts
            return probe_losses(probes, self.facts.num_classes, lambda z: pooled(z, *how))
        return path_losses(self.above, probes, self.config.reference(len(self.below.ends)))

    def copy(self, number: int, present: Mapping[int, None]) -> Update:
        """The server's blocks between two candidates, with the mass of the clients it trained them for."""
        assert self.learner is not None
        passed = [client for client in present if 0 < self.depths.get(client, 0) < number]
        if not passed or not self.above.part.ends:
            return Update({}, 0.0)
        travelling = self.host.travels(self.learner.state)
        weights = {name: travelling[name] for name in segment(self.below, number) if name in travelling}
        mass = sum(self.config.mass(self.facts.num_samples[client]) for client in passed)
        return Update(tree.clone(weights), mass)

    def adopt(self, shared: Weights) -> None:
        """Close the round: go on from the averaged blocks, and let the prototypes move."""
        self.finish_round()
        shared = self.host.travels(shared)
        self.current = {name: shared.get(name, value) for name, value in self.current.items()}
        self.memory.move()

    def view(self, depth: int) -> Weights:
        """What of the model the fed server doesn't hold, as met by features of a candidate ``depth``."""
        shared = self.host.travels(self.host.initial("client"))
        above = {name: value for name, value in self.current.items() if name not in shared}
        return {**above, f"{HEAD}.depth": torch.tensor(depth)}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.memory.load_state_dict(rest.pop("memory"))
        super().load_state_dict(rest)
