"""What estimates sufficiency and has learnt it from labels (FedSGA, eq. 6)."""

from collections.abc import Mapping
from typing import Any

import torch

from rayfl.algorithms.sga.deciding import Inputs
from rayfl.algorithms.sga.estimator import Estimator, EstimatorConfig
from rayfl.seeding import generator


class Estimators:
    """One for all clients, with all their labels, or one each."""

    def __init__(self, config: EstimatorConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self.made: dict[int, Estimator] = {}
        self.examples: dict[int, list[tuple[float, ...]]] = {}
        """By estimator: inputs with their label."""

    def of(self, client: int) -> Estimator:
        """The client's."""
        return self._numbered(self._scope(client))

    def _scope(self, client: int) -> int:
        return client if self.config.scope == "per_client" else 0

    def _numbered(self, scope: int) -> Estimator:
        if scope not in self.made:
            self.made[scope] = Estimator(self.config, generator(self.seed, "estimator"))
        return self.made[scope]

    def learn(self, inputs: Mapping[int, Inputs], labels: Mapping[int, bool]) -> None:
        """Add a label per client, of what it observed, and refit those estimators that got any."""
        touched = set()
        for client, label in sorted(labels.items()):
            scope = self._scope(client)
            examples = self.examples.setdefault(scope, [])
            examples.append((*inputs[client], float(label)))
            del examples[: -self.config.buffer]
            touched.add(scope)
        for scope in sorted(touched):
            table = torch.tensor(self.examples[scope], dtype=torch.float64)
            self._numbered(scope).refit(table[:, :4], table[:, 4])

    def state_dict(self) -> dict[str, Any]:
        """Parameters and examples."""
        return {
            "estimators": {scope: dict(one.state_dict()) for scope, one in self.made.items()},
            "examples": {
                scope: torch.tensor(rows, dtype=torch.float64) for scope, rows in self.examples.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a stored state."""
        for scope, weights in state["estimators"].items():
            self._numbered(scope).load_state_dict(weights)
        self.examples = {
            scope: [tuple(row) for row in table.tolist()] for scope, table in state["examples"].items()
        }
