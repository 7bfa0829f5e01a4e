"""FedSGA's fed server: decides depths, learns from verdicts, averages blocks over all their copies."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from rayfl import roles, tree
from rayfl.algorithms.sga import policy
from rayfl.algorithms.sga.estimator import Estimator, hand_rule
from rayfl.algorithms.sga.interfaces import PROMPTS, Part
from rayfl.algorithms.sga.messages import Decision, Verdict
from rayfl.algorithms.sga.signals import Normaliser, Observation
from rayfl.host import Host
from rayfl.messages import PooledUpdate, Update
from rayfl.roles import per_client
from rayfl.seeding import generator, numpy_generator


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
        self.estimators: dict[int, Estimator] = {}
        self.normaliser = Normaliser(self.config.obs_norm)
        self.sufficiency: dict[int, float] = {}
        """r of each client, as of its last round."""
        self.depths: dict[int, int] = {}
        """The candidate of each client, from 1, as of its last round."""
        self.observed: dict[int, tuple[float, ...]] = {}
        """The estimator's inputs of this round: a, delta, q, last r."""
        self.examples: dict[int, list[tuple[float, ...]]] = {}
        """By estimator: those inputs with their label."""
        self.verdicts: dict[int, Verdict] = {}
        self.right = 0.0
        """The share of this round's labels that the estimator would have given."""
        self.means: list[float] = []
        """The mean sufficiency of every round."""

    @per_client
    def decide(self, observations: Mapping[int, Observation], t: int) -> dict[int, Decision]:
        """Sufficiency and depth of each participant."""
        self.verdicts, self.observed = {}, {}
        config = self.config
        decisions: dict[int, Decision] = {}
        if not config.adaptive:
            found = {client: self._given_depth(t, client) for client in observations}
            for client, depth in found.items():
                decisions[client] = Decision(config.estimator.r0, depth)
        else:
            self._observe(observations)
            for client, inputs in self.observed.items():
                r = self._estimate(client, torch.tensor([inputs], dtype=torch.float64)).item()
                # Of what has diverged nothing is known; the round goes on to where that is said.
                r = r if math.isfinite(r) else 0.0
                decisions[client] = Decision(r, policy.depth(r, config.rho, self.num_candidates))
                self.sufficiency[client] = r
            if decisions:
                self.means.append(sum(one.sufficiency for one in decisions.values()) / len(decisions))
        self.depths.update({client: decision.depth for client, decision in decisions.items()})
        return decisions

    def _given_depth(self, t: int, client: int) -> int:
        if self.config.strategy == "random" and self.config.ablate != "all":
            draw = numpy_generator(self.facts.seed, "depth", t, client)
            return int(draw.integers(1, self.num_candidates, endpoint=True))
        return int(self.config.reference(self.num_candidates))

    def _observe(self, observations: Mapping[int, Observation]) -> None:
        raw = {
            client: (one.alignment.item(), _plain(one.drift), _plain(one.prompt_drift))
            for client, one in observations.items()
        }
        r0 = self.config.estimator.r0
        self.observed = {
            client: (*map(float, values), self.sufficiency.get(client, r0))
            for client, values in self.normaliser(raw).items()
        }

    def _estimate(self, client: int, inputs: Tensor) -> Tensor:
        if self.config.ablate == "suff_est":
            return hand_rule(inputs)
        with torch.no_grad():
            result: Tensor = self._estimator(self._scope(client))(inputs)
        return result

    def _scope(self, client: int) -> int:
        return client if self.config.estimator.scope == "per_client" else 0

    def _estimator(self, scope: int) -> Estimator:
        if scope not in self.estimators:
            draw = generator(self.facts.seed, "estimator")
            self.estimators[scope] = Estimator(self.config.estimator, draw)
        return self.estimators[scope]

    def calibrate(self, verdicts: Mapping[int, Verdict]) -> None:
        """Learn from this round's labels (eq. 6)."""
        config = self.config.estimator
        self.verdicts = dict(verdicts)
        called = {client: self.sufficiency[client] > 0.5 for client in verdicts}
        right = [called[client] == verdict.sufficient for client, verdict in verdicts.items()]
        self.right = sum(right) / max(len(right), 1)
        touched = set()
        for client, verdict in sorted(verdicts.items()):
            scope = self._scope(client)
            examples = self.examples.setdefault(scope, [])
            examples.append((*self.observed[client], float(verdict.sufficient)))
            del examples[: -config.buffer]
            touched.add(scope)
        for scope in sorted(touched):
            table = torch.tensor(self.examples[scope], dtype=torch.float64)
            self._estimator(scope).refit(table[:, :4], table[:, 4])

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
        """What the round's decisions were made of: name -> client -> value."""
        # Of a round without anybody the server hears nothing: what it holds is then of an earlier one.
        observed = self.observed if participants else {}
        verdicts = self.verdicts if participants else {}
        found: dict[str, dict[int, float]] = {
            name: {client: values[j] for client, values in observed.items()}
            for j, name in enumerate(("a", "delta", "q", "r_prev"))
        }
        found["r"] = {client: self.sufficiency[client] for client in observed}
        found["label"] = {client: float(one.sufficient) for client, one in verdicts.items()}
        found["ratio"] = {client: one.ratio for client, one in verdicts.items()}
        found["right"] = {0: self.right} if verdicts else {}
        found["r_mean"] = dict(enumerate(self.means))
        return found

    def state_dict(self) -> dict[str, Any]:
        estimators = {scope: dict(one.state_dict()) for scope, one in self.estimators.items()}
        examples = {scope: torch.tensor(rows, dtype=torch.float64) for scope, rows in self.examples.items()}
        return {
            **super().state_dict(),
            "estimators": estimators,
            "examples": examples,
            "sufficiency": dict(self.sufficiency),
            "depths": dict(self.depths),
            "means": list(self.means),
            "normaliser": self.normaliser.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for scope, weights in state["estimators"].items():
            self._estimator(scope).load_state_dict(weights)
        self.examples = {
            scope: [tuple(row) for row in table.tolist()] for scope, table in state["examples"].items()
        }
        self.means = list(state["means"])
        self.sufficiency, self.depths = dict(state["sufficiency"]), dict(state["depths"])
        self.normaliser.load_state_dict(state["normaliser"])


def _plain(value: Tensor | None) -> float | None:
    return None if value is None else value.item()
