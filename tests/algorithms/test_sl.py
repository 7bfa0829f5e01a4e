"""Sequential split learning against Gupta and Raskar 2018: central training in the clients' order."""

from typing import Any

import pytest
import tiny
from tiny import difference, identical

KEPT: list[dict[str, Any]] = [
    {"momentum": 0.9, "weight_decay": 1e-2},
    {"optimizer": "adam", "lr": 0.01},
    {"lr_schedule": "exponential", "lr_decay": 0.5, "momentum": 0.5},
    {"local_epochs": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("relay", ["server", "peer"])
@pytest.mark.parametrize("config", KEPT, ids=["momentum", "adam", "schedule", "epochs"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_kept_optimiser_is_central_training(model: str, config: dict[str, Any], relay: str) -> None:
    """With momenta handed on, rounds = central training on client 0's batches, then client 1's, and so on."""
    plan = tiny.blueprint("sl", model=model, reset_optimizer="keep", relay=relay, **config)
    central = tiny.initial(plan)
    optimizer = tiny.optimizer_for(plan, central)
    for t in (1, 2):
        optimizer.param_groups[0]["lr"] = tiny.lr_at(plan.config, t)
        for client in range(4):
            tiny.fit(central, optimizer, tiny.client_batches(plan, t, client))
    assert difference(tiny.run(plan), tiny.state_of(central)) < 1e-10


def test_reset_renews_client_momentum_each_turn_and_the_servers_each_round() -> None:
    """Two optimisers: the client part's lives for a turn, the server part's for a round."""
    plan = tiny.blueprint("sl", momentum=0.9)
    parts = tiny.cut_parts(plan)
    for t in (1, 2):
        server = tiny.optimizer_for(plan, parts["main"])
        for i in range(4):
            client = tiny.optimizer_for(plan, parts["client"])
            for inputs, labels in tiny.client_batches(plan, t, i):
                client.zero_grad()
                server.zero_grad()
                tiny.loss(parts["main"](parts["client"](inputs)), labels).backward()
                client.step()
                server.step()
    state = {**tiny.state_of(parts["client"]), **tiny.state_of(parts["main"])}
    assert difference(tiny.run(plan), state) < 1e-12


def test_peers_and_server_relay_the_same() -> None:
    """Which way the client part goes changes no bit."""
    config: dict[str, Any] = {"model": "batch", "momentum": 0.9, "participation": 0.5, "turns": "shuffled"}
    plans = [tiny.blueprint("sl", relay=relay, **config) for relay in ("server", "peer")]
    assert identical(*(tiny.run(plan, 3) for plan in plans))


def test_shuffled_turns() -> None:
    """A seeded order each round: repeatable, other than the order of ids, each client once."""
    federation = tiny.Federation(tiny.blueprint("sl", turns="shuffled")).run(1)
    assert federation.traffic(1)["client-main", "up", "label"] == 8 * sum(tiny.SIZES)
    shuffled = [tiny.run(tiny.blueprint("sl", turns="shuffled")) for _ in range(2)]
    assert identical(*shuffled)
    assert difference(shuffled[0], tiny.run(tiny.blueprint("sl"))) > 1e-6


def test_absent_clients_have_no_turn() -> None:
    """With partial participation the turn list is the participants', in the order of ids."""
    plan = tiny.blueprint("sl", participation=0.5)
    federation = tiny.Federation(plan)
    central = tiny.initial(plan)
    for t in (1, 2):
        for client in federation.algorithm.sample(t).ids:
            tiny.fit(central, tiny.optimizer_for(plan, central), tiny.client_batches(plan, t, client))
    assert difference(federation.run(2).weights(), tiny.state_of(central)) < 1e-12


@pytest.mark.parametrize("relay", ["server", "peer"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_ledger(model: str, relay: str) -> None:
    """Batches as in every split method; the client part crosses 2k times by the server, k among peers."""
    plan = tiny.blueprint("sl", model=model, relay=relay)
    size, elements = tiny.part_bytes(plan)["client"], tiny.cut_elements(plan)["client"]
    seen = sum(tiny.samples(plan, client) for client in range(4))
    federation = tiny.Federation(plan).run(2)
    weights = {("client-main", "down", "weights"): 4 * size, ("client-main", "up", "weights"): 4 * size}
    if relay == "peer":
        weights = {("client-main", "down", "weights"): size, ("client-client", "up", "weights"): 3 * size}
    for t in (1, 2):
        assert federation.traffic(t) == {
            ("client-main", "up", "activation"): 8 * elements * seen,
            ("client-main", "up", "label"): 8 * seen,
            ("client-main", "down", "gradient"): 8 * elements * seen,
            **weights,
        }


def test_kept_momentum_is_relayed_in_the_open() -> None:
    """Momenta that go with the weights are counted, apart from them: at least one number per parameter."""
    plan = tiny.blueprint("sl", momentum=0.9, reset_optimizer="keep")
    federation = tiny.Federation(plan).run(2)
    aux = [federation.traffic(t)["client-main", "up", "aux"] for t in (1, 2)]
    assert min(aux) >= 4 * tiny.part_bytes(plan)["client"]
