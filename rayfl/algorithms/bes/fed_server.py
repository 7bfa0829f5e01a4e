"""BESplit's fed server: averages what clients hold by the weights that the main server finds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayfl import roles, tree
from rayfl.host import Host
from rayfl.messages import Update, Weights


class WeighingServer(roles.FedServer):
    """Holds the average of client-side models and, where asked, of auxiliary ones."""

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.shared: Weights = {}
        """The average of auxiliary models; empty before the first one."""

    def average(self, updates: Mapping[int, Update], masses: Mapping[int, float]) -> None:
        """Replace the client-side model by the mean of the updates, each with its mass."""
        self.aggregate(weighed(updates, masses))

    def average_auxiliary(self, updates: Mapping[int, Update], masses: Mapping[int, float]) -> None:
        """Replace the auxiliary model likewise."""
        mean = tree.weighted_mean(weighed(updates, masses), self.facts.num_clients)
        if mean is not None:
            self.shared = mean.weights

    def auxiliary(self) -> Weights:
        """The present average of auxiliary models."""
        return self.shared or self.host.travels(self.host.initial("auxiliary"))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **({"shared": dict(self.shared)} if self.shared else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.shared = state.get("shared", {})


def weighed(updates: Mapping[int, Update], masses: Mapping[int, float]) -> dict[int, Update]:
    """The updates that have weights, with the mass that each client got."""
    return {
        client: replace(update, mass=masses[client])
        for client, update in updates.items()
        if client in masses and update.mass > 0
    }
