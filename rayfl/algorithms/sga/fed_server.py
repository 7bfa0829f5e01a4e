"""FedSGA's fed server: decides depths, learns from verdicts, averages blocks over all their copies."""

from collections.abc import Collection, Mapping
from typing import Any

from rayfl import roles, tree
from rayfl.algorithms.sga import deciding
from rayfl.algorithms.sga.interfaces import PROMPTS, Part
from rayfl.algorithms.sga.learning import Estimators
from rayfl.algorithms.sga.messages import Decision, Verdict
from rayfl.algorithms.sga.signals import Normaliser, Observation
from rayfl.host import Host
from rayfl.messages import PooledUpdate, Update, Weights
from rayfl.roles import per_client
from rayfl.seeding import numpy_generator


class DecidingServer(roles.FedServer):
    """Holds the clients' blocks, the estimator and what it has learnt from."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.current = {
            name: value for name, value in self.current.items() if not name.startswith(f"{PROMPTS}.")
        }
        held = host.parts["client"]
        assert isinstance(held, Part)
        self.num_candidates = len(held.ends)
        self.estimators = Estimators(self.config.estimator, self.facts.seed)
        self.normaliser = Normaliser(self.config.obs_norm)
        self.sufficiency: dict[int, float] = {}
        """r of each client, as of its last round."""
        self.depths: dict[int, int] = {}
        """The candidate of each client, from 1, as of its last round."""
        self.decided: dict[int, Decision] = {}
        """In this round, by what was observed."""
        self.observed: dict[int, deciding.Inputs] = {}
        """What is known of this round's decisions: a, delta, q, last r."""
        self.verdicts: dict[int, Verdict] = {}
        self.right = 0.0
        """The share of this round's labels that the estimator would have given."""
        self.means: list[float] = []
        """The mean sufficiency of every round."""

    @per_client
    def decide(self, observations: Mapping[int, Observation], t: int) -> dict[int, Decision]:
        """Sufficiency and depth of each participant."""
        if not self.config.adaptive:
            depths = {client: self._given_depth(t, client) for client in observations}
            self.depths.update(depths)
            return {client: Decision(self.config.estimator.r0, depth) for client, depth in depths.items()}
        raw = {client: one.plain() for client, one in observations.items()}
        r0 = self.config.estimator.r0
        observed = {
            client: (*map(float, values), self.sufficiency.get(client, r0))
            for client, values in self.normaliser(raw).items()
        }
        by_rule = self.config.ablate == "suff_est"
        decisions = {
            client: deciding.decision(
                self.config, None if by_rule else self.estimators.of(client), inputs, self.num_candidates
            )
            for client, inputs in observed.items()
        }
        self.record(decisions)
        self.observed = observed
        return decisions

    def _given_depth(self, t: int, client: int) -> int:
        if self.config.strategy == "random" and self.config.ablate != "all":
            draw = numpy_generator(self.facts.seed, "depth", t, client)
            return int(draw.integers(1, self.num_candidates, endpoint=True))
        return int(self.config.reference(self.num_candidates))

    @per_client
    def parameters(self, clients: Mapping[int, None]) -> dict[int, Weights]:
        """Those of each client's estimator; none where a rule stands in for it."""
        if self.config.ablate == "suff_est":
            return {client: {} for client in clients}
        # A copy: the next labels change them in place.
        return {client: tree.clone(self.estimators.of(client).state_dict()) for client in clients}

    def record(self, decisions: Mapping[int, Decision]) -> None:
        """Open a round on what was decided, here or by the clients themselves."""
        self.decided, self.observed, self.verdicts = dict(decisions), {}, {}
        self.sufficiency.update({client: one.sufficiency for client, one in decisions.items()})
        self.depths.update({client: one.depth for client, one in decisions.items()})
        if decisions:
            self.means.append(sum(one.sufficiency for one in decisions.values()) / len(decisions))

    def calibrate(self, verdicts: Mapping[int, Verdict]) -> None:
        """Learn from this round's labels (eq. 6)."""
        self.verdicts = dict(verdicts)
        self.observed |= {client: one.inputs for client, one in verdicts.items() if one.inputs}
        labels = {client: one.sufficient for client, one in verdicts.items()}
        right = [label == (self.sufficiency[client] > 0.5) for client, label in labels.items()]
        self.right = sum(right) / max(len(right), 1)
        self.estimators.learn(self.observed, labels)

    def average(self, number: int, updates: Mapping[int, Update | PooledUpdate], copy: Update) -> None:
        """Blocks between two candidates: the mean of the clients' copies and the server's, by mass."""
        mean = tree.weighted_mean(updates, self.facts.num_clients)
        both = {0: mean, 1: copy} if mean is not None else {1: copy}
        total = tree.weighted_mean({i: one for i, one in both.items() if one.mass > 0}, 2)
        if total is not None:
            self.current = {**self.current, **total.weights}

    def candidates(self) -> dict[int, int]:
        """The present candidate of every client; the reference for those that nothing is known of."""
        reference = self.config.reference(self.num_candidates)
        return {client: self.depths.get(client, reference) for client in range(self.facts.num_clients)}

    def report(self, participants: Collection[int]) -> dict[str, dict[int, float]]:
        """What the round's decisions were made of, as far as it is known here: name -> client -> value."""
        # Of a round without anybody the server hears nothing: what it holds is then of an earlier one.
        verdicts = self.verdicts if participants else {}
        decided = self.decided if participants else {}
        return {
            **deciding.by_name(self.observed if participants else {}),
            "r": {client: one.sufficiency for client, one in decided.items()},
            "label": {client: float(one.sufficient) for client, one in verdicts.items()},
            "ratio": {client: one.ratio for client, one in verdicts.items()},
            "right": {0: self.right} if verdicts else {},
            "r_mean": dict(enumerate(self.means)),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            **self.estimators.state_dict(),
            "sufficiency": dict(self.sufficiency),
            "depths": dict(self.depths),
            "means": list(self.means),
            "normaliser": self.normaliser.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.estimators.load_state_dict(state)
        self.means = list(state["means"])
        self.sufficiency, self.depths = dict(state["sufficiency"]), dict(state["depths"])
        self.normaliser.load_state_dict(state["normaliser"])
