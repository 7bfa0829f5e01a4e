"""Traffic as a paper counted it, beside what the ledger counts."""

import math

from rayfl.config import ExperimentConfig
from rayfl.costs.sides import Side
from rayfl.errors import UserError
from rayfl.ledger import Entry, Ledger

ACCOUNTINGS = {
    "counted": "what crosses each link, per receiver",
    "paper_hsfp": "H-SFP's table: every round sends the model down to all clients, participants or not",
}
"""Name -> whose traffic it is."""


def paper_hsfp(config: ExperimentConfig, client: Side) -> Ledger:
    """The weights that H-SFP's table charges FedAvg and HierFL with; other kinds are not charged.

    With K clients, P of them taking part, and E edges, a round is P transfers up and K down of the whole
    state, under HierFL 3 E more between edges and cloud. The published totals of 200 rounds are 220 and 250
    transfers per round of a ResNet-50 with 10 classes: 3,865.35 and 4,392.44 GiB, there called GB. Of the 30
    transfers that ten edges add, only the number is known; here 10 go up and 20 down, as if the downlink
    were charged twice, before and after the cloud's average. Cloud intervals don't enter.
    Raises UserError for other methods.
    """
    name = config.algorithm.name
    if name not in ("fedavg", "hierfl"):
        raise UserError(
            f"accounting paper_hsfp is known for fedavg and hierfl only, got '{name}': use counted"
        )
    clients, edges = config.data.num_clients, config.data.num_edges
    participants = max(math.floor(config.algorithm.participation * clients + 1e-9), 1)
    transfers = {("client-fed", "up"): participants, ("client-fed", "down"): clients}
    if name == "hierfl":
        transfers = {
            ("client-edge", "up"): participants,
            ("client-edge", "down"): clients,
            ("edge-cloud", "up"): edges,
            ("edge-cloud", "down"): 2 * edges,
        }
    ledger = Ledger()
    for t in range(1, config.rounds + 1):
        for (link, direction), count in transfers.items():
            ledger.bytes[Entry(t, "aggregation", link, direction, "weights")] = count * client.state_bytes
    return ledger
