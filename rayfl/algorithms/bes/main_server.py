"""BESplit's main server: replicas, records of what clients' features are evidence of, and pairs."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from rayfl import cutting, roles
from rayfl.algorithms.bes import exchange, objective
from rayfl.algorithms.bes.calibration import Calibration, calibration
from rayfl.algorithms.bes.contribution import masses, shares
from rayfl.algorithms.bes.evidence import evidence
from rayfl.algorithms.bes.exchange import Side
from rayfl.algorithms.bes.fed_server import weighed
from rayfl.algorithms.bes.messages import Lesson
from rayfl.algorithms.bes.pairing import Pair
from rayfl.algorithms.bes.records import ClassSums, Record, live
from rayfl.algorithms.bes.tally import Tally
from rayfl.algorithms.bes.teacher import Teacher
from rayfl.algorithms.bes.uncertainty import mutual_information, uncertainties, vacuity
from rayfl.cutting import Values
from rayfl.host import Host, Learner
from rayfl.messages import Gradient, SmashedBatch, Update, Weights, moved
from rayfl.roles import per_client
from rayfl.seeding import generator


class EvidentialServer(roles.ReplicaServer):
    """A replica per client, all in one place, as any two clients may pair."""

    scope = "joint"

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.records: dict[int, Record] = {}
        self.masses: dict[int, float] = {}
        """What each client's evidence counted in its last round; 1 in the mean."""
        self.teacher = Teacher(host)

    def receive(self, weights: Weights, t: int) -> None:
        super().receive(weights, t)
        self.teacher.receive(weights)
        self.calibration, self.shares, self.step = Calibration(), dict[int, float](), 0
        self.tallies: dict[int, Tally] = defaultdict(Tally)
        self.evidence: dict[int, Tensor] = {}

    def match(self, participants: Collection[int]) -> None:
        """Find out who is biased, and who pairs with whom, from what is known of earlier rounds."""
        self.records = live(self.records, self.t, self.config.csr.ttl)
        if participants:
            weights = shares(self._weights(participants))
            self.calibration = calibration(self.records, weights, self.config, self.t)

    @per_client
    def train_step(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
        """One step of each client's own replica, on the client's batch or on its partner's as well."""
        self.step += 1
        taught = self.teacher.evidence(smashed, self.kept_by_client)
        gradients: dict[int, Gradient] = {}
        for pair in self.calibration.pairs(smashed.keys()):
            gradients |= self.together(pair, smashed)
        for client, batch in smashed.items():
            if client not in gradients:
                gradients[client] = self.alone(client, batch)
        if self.config.dtd.asks and self.config.dtd.teacher == "current":
            taught = {client: self.evidence[client].to(self.host.dtype) for client in smashed}
        return {client: Lesson(gradients[client].values, taught.get(client)) for client in smashed}

    def alone(self, client: int, batch: SmashedBatch) -> Gradient:
        """A step on the client's own batch."""
        learner, inputs = self._replica(client), cutting.entering(batch.activations)
        self._own_loss(client, learner, inputs, batch.labels).backward()
        learner.step()
        return Gradient(cutting.gradients(inputs))

    def together(self, pair: Pair, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
        """A step of two replicas on two batches. A client's gradient is of both losses, by its features."""
        clients = (pair.first, pair.second)
        labels = (smashed[pair.first].labels, smashed[pair.second].labels)
        rho, gives = (
            torch.as_tensor(of_classes, device=labels[0].device)
            for of_classes in (pair.rho, self.calibration.first_gives(pair))
        )
        rho = exchange.active(rho, gives, labels)
        if not rho.any():
            return {client: self.alone(client, smashed[client]) for client in clients}
        learners = [self._replica(client) for client in clients]
        inputs = [cutting.entering(smashed[client].activations) for client in clients]
        draw = generator(self.facts.seed, "swap", self.t, self.step, *clients)
        sides = exchange.sides(rho, labels, self.config.bcc, draw)
        losses = []
        for i, j in ((0, 1), (1, 0)):
            both, of_both = (inputs[i], inputs[j]), (labels[i], labels[j])
            if self.config.bcc.mode == "feature_mixup":
                features = exchange.mixed(rho, *both, of_both)
                losses.append(self._own_loss(clients[i], learners[i], features, labels[i]))
            else:
                losses.append(self._loss(clients[i], learners[i], sides[i], both, of_both))
            self.tallies[clients[i]].partners[clients[j]] += 1
        (losses[0] + losses[1]).backward()
        for learner in learners:
            learner.step()
        return {client: Gradient(cutting.gradients(z)) for client, z in zip(clients, inputs, strict=True)}

    def _own_loss(self, client: int, learner: Learner, inputs: Values, labels: Tensor) -> Tensor:
        logits = learner.forward(inputs)
        self.note(client, logits, labels)
        self._trained(client, labels, torch.ones_like(labels))
        return objective.reduced(self.host, logits, labels, self.t)

    def _loss(
        self, client: int, learner: Learner, side: Side, inputs: tuple[Values, Values], labels: exchange.Pair
    ) -> Tensor:
        """Of a client's replica on its own batch and on what it borrows of its partner's."""
        borrowed: Values = cutting.each(lambda value: value[side.rows], inputs[1])
        trained = torch.cat([labels[0], labels[1][side.rows]])
        # BatchNorm can't train on a lone sample.
        lone = self.facts.batch_norm and len(side.rows) == 1
        if len(side.rows) and self.config.bcc.bn == "separate" and not lone:
            logits = torch.cat([learner.forward(inputs[0]), learner.forward(borrowed)])
        else:
            logits = learner.forward(cutting.merged([inputs[0], borrowed]))
        num_own = len(labels[0])
        self.note(client, logits[:num_own], labels[0])
        self._trained(client, trained, side.counts)
        loss = side.mean(objective.each(self.config, logits, trained, self.t))
        return loss * num_own if self.config.loss_reduction == "sum" else loss

    def note(self, client: int, logits: Tensor, labels: Tensor) -> None:
        """Take a batch of the client's own into its record."""
        # What has diverged is no evidence of anything.
        found = evidence(logits.detach(), self.config.evidence).nan_to_num(0.0)
        self.evidence[client] = found
        if self.host.hollow:
            return
        aleatoric, epistemic = uncertainties(found, self.config.evidence)
        sums = ClassSums.of(found, aleatoric, epistemic, labels)
        unsure = torch.stack([vacuity(found), aleatoric, mutual_information(found)])
        self.tallies[client].note(sums, unsure.mean(1))
        if self.config.csr.update == "batch":
            self._update(client, sums)

    def _trained(self, client: int, labels: Tensor, counts: Tensor) -> None:
        if not self.host.hollow:
            self.tallies[client].train(labels, counts, self.facts.num_classes)

    def _update(self, client: int, sums: ClassSums) -> None:
        if client not in self.records:
            num_samples = self.facts.num_samples[client]
            self.records[client] = Record.empty(self.facts.num_classes, num_samples, self.host.device)
        self.records[client].update(sums, self.config.csr.eta, self.t)

    def _replica(self, client: int) -> Learner:
        learner = super()._replica(client)
        if self.config.reset_optimizer == "per_batch":
            learner.renew_optimizer()
        return learner

    @per_client
    def weigh(self, present: Mapping[int, None]) -> dict[int, float]:
        """What each client counts in this round's averages (EA)."""
        if self.config.csr.update == "round":
            for client, tally in sorted(self.tallies.items()):
                assert tally.seen is not None
                self._update(client, tally.seen)
        self.masses |= masses(self.records, present, self.config.ea, self.masses)
        found = self._weights(present)
        self.shares = shares(found)
        return found

    def _weights(self, clients: Collection[int]) -> dict[int, float]:
        sizes = self.facts.num_samples
        return {i: self.config.mass(sizes[i]) * self.masses.get(i, 1.0) for i in sorted(clients)}

    @per_client
    def weighed_updates(self, weights: Mapping[int, float]) -> dict[int, Update]:
        """Close the round: the replicas of the clients that got through it, each with its mass."""
        return weighed(self.updates(dict.fromkeys(weights)), weights)

    def report(self) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
        """Of the round: name -> client -> value, and name -> value."""
        of_clients: dict[str, dict[int, float]] = {"weight": self.shares}
        unsure = {client: tally.means() for client, tally in sorted(self.tallies.items())}
        for place, name in enumerate(("vacuity", "aleatoric", "epistemic")):
            of_clients[name] = {client: means[place] for client, means in unsure.items()}
        partners = {client: tally.partner() for client, tally in sorted(self.tallies.items())}
        of_clients["partner"] = {i: float(other) for i, other in partners.items() if other is not None}
        return of_clients, self._of_round()

    def _of_round(self) -> dict[str, float]:
        planned, tallies = self.calibration.planned, self.tallies.values()
        found = {"num_pairs": float(len(planned))}
        steps = sum(tally.num_batches for tally in tallies)
        if steps:
            found["paired_share"] = sum(tally.partners.total() for tally in tallies) / steps
        if planned:
            found["mean_rho"] = sum(float(pair.rho[pair.rho > 0].mean()) for pair in planned) / len(planned)
        if self.calibration.deviations and tallies:
            found["label_bias_before"], found["label_bias_after"] = self.calibration.planned_bias()
            mixes = {client: tally.mix() for client, tally in self.tallies.items()}
            found["label_bias_realised"] = self.calibration.realised_bias(mixes)
        return found

    def state_dict(self) -> dict[str, Any]:
        records = {client: record.state_dict() for client, record in self.records.items()}
        return {**super().state_dict(), "records": records, "masses": dict(self.masses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        records = moved(rest.pop("records"), self.host.device)
        self.records = {client: Record(**record) for client, record in records.items()}
        self.masses = dict(rest.pop("masses"))
        super().load_state_dict(rest)
