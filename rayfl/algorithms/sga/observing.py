"""FedSGA's client observes itself, and cuts as deep as that suggests."""

from collections.abc import Mapping
from typing import Any

import torch

from rayfl import roles
from rayfl.algorithms.sga import deciding
from rayfl.algorithms.sga.aligning import Aligning
from rayfl.algorithms.sga.drifts import KEPT, Drifts
from rayfl.algorithms.sga.interfaces import PROMPTS
from rayfl.algorithms.sga.messages import Decision
from rayfl.algorithms.sga.prototypes import Prototypes
from rayfl.algorithms.sga.sides import Below
from rayfl.algorithms.sga.signals import Normaliser, Observation
from rayfl.host import Batch, Host
from rayfl.messages import Weights

TOKENS = f"{PROMPTS}.tokens"
_OWN = ("private", "own", "depth", "sufficiency")


class ObservingClient(roles.SplitClient):
    """Keeps its prompts and what it needs to see what has moved."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.private = {
            name: value for name, value in host.initial("client").items() if name.startswith(f"{PROMPTS}.")
        }
        """The prompts, which no other party ever gets in training."""
        self.own: Weights = {}
        """The prefix that stays with the client (``client_aggregation: none``)."""
        self.depth = 0
        """The number of its candidate, from 1; 0 before its first round."""
        self.sufficiency: float | None = None
        """r of its last round, where it works that out itself (``estimator_location: client``)."""
        self.inputs: deciding.Inputs = ()
        """What it has worked it out from in this round."""
        self.drifts = Drifts(self.config)

    def receive(self, weights: Weights, t: int, steps: int | None = None) -> None:
        """Open round ``t``: shared blocks come, prompts are the client's own."""
        self.t, self.inputs = t, ()
        self.ahead: list[Batch] = []
        self.drifts.forget_steps()
        super().receive({**weights, **self.own, **self.private}, t, steps)

    @property
    def below(self) -> Below:
        """The blocks in training."""
        assert self.learner is not None
        return Below(self.learner)

    @property
    def aligning(self) -> Aligning:
        """The blocks in training, towards the round's prototypes."""
        return Aligning(self.config, self.below, self.prototypes)

    def observe(self, prototypes: Prototypes) -> Observation:
        """Alignment, feature drift and prompt drift on the round's first batches (eqs. 2 to 5)."""
        self.prototypes = prototypes
        self.observation = Observation(torch.zeros(()), None, None)
        self.ahead = [next(self.batches) for _ in range(min(self.config.obs_batches, self.num_steps))]
        if self.ahead:
            alignment, feature = self.aligning.observe(self.ahead)
            drifts = self.drifts.since(feature, self.private.get(TOKENS))
            self.observation = Observation(alignment, *drifts)
        return self.observation

    def decide(self, parameters: Weights) -> Decision:
        """By an estimator of these parameters (none: by rule), how deep to train until the round ends."""
        config, last = self.config, self.sufficiency
        (observed,) = Normaliser(config.obs_norm)({self.id: self.observation.plain()}).values()
        self.inputs = (*map(float, observed), config.estimator.r0 if last is None else last)
        estimator = deciding.received(config, parameters)
        decision = deciding.decision(config, estimator, self.inputs, len(self.below.part.ends))
        self.sufficiency = decision.sufficiency
        self.start(decision)
        return decision

    def start(self, decision: Decision) -> None:
        """Train at this depth until the round ends."""
        self.depth = decision.depth

    def estimated_from(self) -> deciding.Inputs:
        """What this round's decision was made of, where it was made here; for the record alone."""
        return self.inputs

    def prompts(self) -> Weights:
        """The private prompts, for scoring alone."""
        return self.private

    def abandon(self) -> None:
        self.ahead = []
        self.drifts.forget_steps()
        super().abandon()

    def state_dict(self) -> dict[str, Any]:
        if self.depth == 0:
            return super().state_dict()
        own = {name: getattr(self, name) for name in _OWN}
        kept = {name: value for name, value in own.items() if value is not None and value != {}}
        return {**super().state_dict(), **kept, **self.drifts.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        for name in _OWN:
            if name in rest:
                setattr(self, name, rest.pop(name))
        self.drifts.load_state_dict({name: rest.pop(name) for name in KEPT if name in rest})
        super().load_state_dict(rest)
