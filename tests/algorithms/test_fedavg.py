"""FedAvg against McMahan et al. 2017, Algorithm 1, written out in plain torch."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tiny import difference, identical

from rayfl.roles import FedServer


def plain_fedavg(plan: Any, rounds: int, participants: list[tuple[int, ...]]) -> tiny.State:
    """Local training from the average by a fresh optimiser, then the mean by samples."""
    model = tiny.initial(plan)
    start = tiny.state_of(model)
    for t, chosen in zip(range(1, rounds + 1), participants, strict=True):
        results = []
        for client in chosen:
            model.load_state_dict(start)
            tiny.fit(model, tiny.optimizer_for(plan, model, t), tiny.client_batches(plan, t, client))
            results.append(tiny.state_of(model))
        start = tiny.average(results, [plan.facts.num_samples[i] for i in chosen])
    return start


@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str) -> None:
    """Two partial rounds with momentum, two epochs and a schedule = a loop in plain torch, buffers too."""
    plan = tiny.blueprint(
        "fedavg", model=model, momentum=0.9, local_epochs=2, participation=0.5, lr_schedule="exponential"
    )
    federation = tiny.Federation(plan)
    chosen = [federation.algorithm.sample(t).ids for t in (1, 2)]
    assert [len(ids) for ids in chosen] == [2, 2]
    assert difference(federation.run(2).weights(), plain_fedavg(plan, 2, chosen)) < 1e-12


def test_full_batches_are_gradient_descent_on_all_data() -> None:
    """E = 1, B = all: one round is one full-batch step on the pooled data."""
    plan = tiny.blueprint("fedavg", batch_size=50)
    central = tiny.initial(plan)
    everything = plan.train.batch(np.arange(len(plan.train)), torch.float64, "cpu")
    tiny.fit(central, tiny.optimizer_for(plan, central), [everything])
    assert difference(tiny.run(plan, 1), tiny.state_of(central)) < 1e-14


@pytest.mark.parametrize("model", tiny.CUTS)
def test_one_client_keeps_every_bit(model: str) -> None:
    """The global state after one client's round is that client's: buffers, counters and dtypes included."""
    plan = tiny.blueprint("fedavg", (11,), model, drop_last=True, dtype="float32")
    network = plan.model().train()
    stream = [(x.float(), y) for x, y in tiny.client_batches(plan, 1, 0)]
    tiny.fit(network, tiny.optimizer_for(plan, network), stream)
    assert identical(tiny.run(plan, 1), tiny.state_of(network))


def test_counters_and_running_statistics() -> None:
    """Of 2, 1 and 3 batches the counter is 3; running means go by size."""
    plan = tiny.blueprint("fedavg", (7, 3, 10), "batch")
    states = []
    for client in range(3):
        network = tiny.initial(plan)
        tiny.fit(network, tiny.optimizer_for(plan, network), tiny.client_batches(plan, 1, client))
        states.append(tiny.state_of(network))
    name = "block0.1.running_mean"
    by_hand = (7 * states[0][name] + 3 * states[1][name] + 10 * states[2][name]) / 20
    found = tiny.run(plan, 1)
    assert found["block0.1.num_batches_tracked"].item() == 3
    assert (found[name] - by_hand).abs().max() < 1e-15


def test_no_epochs_change_no_bit() -> None:
    """E = 0 leaves the weights as they were, in float32 to the last bit."""
    plan = tiny.blueprint("fedavg", model="batch", local_epochs=0, dtype="float32")
    assert identical(tiny.run(plan), tiny.state_of(plan.model()))


def test_identical_clients_average_to_any_of_them() -> None:
    """Clients with the same data in one full batch agree with their mean."""
    one = tiny.memory("mlp", 6, 4)
    train = tiny.Memory(one.inputs.repeat(3, 1), np.tile(one.labels, 3))
    several = tiny.blueprint("fedavg", (6, 6, 6), batch_size=6, local_epochs=3, train=train)
    single = tiny.blueprint("fedavg", (6,), batch_size=6, local_epochs=3, train=one)
    assert difference(tiny.run(several), tiny.run(single)) < 1e-14


def test_renaming_clients_changes_nothing() -> None:
    """Clients that swap ids and data give the same global model."""
    sizes, bounds = (7, 3, 10), [0, 7, 10, 20]
    data = tiny.memory("mlp", 20, 1)
    rows = np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in (2, 0, 1)])
    moved = tiny.Memory(data.inputs[torch.from_numpy(rows)], data.labels[rows])
    first = tiny.blueprint("fedavg", sizes, batch_size=50, train=data)
    second = tiny.blueprint("fedavg", (10, 7, 3), batch_size=50, train=moved)
    assert difference(tiny.run(first), tiny.run(second)) < 1e-14


def test_uniform_shares() -> None:
    """``weights: uniform`` is the plain mean, and another model."""
    plan = tiny.blueprint("fedavg", weights="uniform")
    states = []
    for client in range(4):
        network = tiny.initial(plan)
        tiny.fit(network, tiny.optimizer_for(plan, network), tiny.client_batches(plan, 1, client))
        states.append(tiny.state_of(network))
    assert difference(tiny.run(plan, 1), tiny.average(states, [1, 1, 1, 1])) < 1e-14
    assert difference(tiny.run(plan, 1), tiny.run(tiny.blueprint("fedavg"), 1)) > 1e-4


@pytest.mark.parametrize(("clients", "stragglers", "aggregated"), [(10, 0.9, 1), (10, 0.5, 5), (4, 0.0, 4)])
def test_stragglers_are_dropped(clients: int, stragglers: float, aggregated: int) -> None:
    """Of m participants round((1 - s) m) are averaged: one 8-byte count each on the way up."""
    plan = tiny.blueprint("fedavg", (2,) * clients, stragglers=stragglers)
    traffic = tiny.Federation(plan).run(1).traffic(1)
    assert traffic["client-fed", "up", "counts"] == 8 * aggregated


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_ledger(model: str, bn: str) -> None:
    """Down w and up w_k, n_k per participant; BatchNorm buffers go along only where they are averaged."""
    plan = tiny.blueprint("fedavg", model=model, participation=0.5, bn=bn)
    federation = tiny.Federation(plan).run(2)
    state = plan.model().double().state_dict()
    travelling = {
        k: v for k, v in state.items() if bn == "average" or ("running" not in k and "num_batches" not in k)
    }
    for t in (1, 2):
        assert federation.traffic(t) == {
            ("client-fed", "down", "weights"): 2 * tiny.num_bytes(state),
            ("client-fed", "up", "weights"): 2 * tiny.num_bytes(travelling),
            ("client-fed", "up", "counts"): 2 * 8,
        }


@pytest.mark.parametrize(
    ("fraction", "clients", "count"), [(1.0, 7, 7), (0.5, 7, 3), (0.1, 7, 1), (0.3, 10, 3), (0.01, 7, 1)]
)
def test_participants(fraction: float, clients: int, count: int) -> None:
    """max(floor(C N), 1) different clients, new ones each round, the same ones again when asked again."""
    algorithm = tiny.Federation(tiny.blueprint("fedavg", (2,) * clients, participation=fraction)).algorithm
    draws = [algorithm.sample(t).ids for t in range(1, 30)]
    assert {len(set(ids)) for ids in draws} == {count}
    assert draws == [algorithm.sample(t).ids for t in range(1, 30)]
    if count < clients:
        assert len(set(draws)) > 1


def test_sampling_by_size() -> None:
    """A client with 18 of 20 samples comes about 18 times in 20; uniformly, about one time in three."""
    counts = {}
    for sampling in ("by_size", "uniform"):
        plan = tiny.blueprint("fedavg", (18, 1, 1), participation=0.34, sampling=sampling)
        algorithm = tiny.Federation(plan).algorithm
        counts[sampling] = sum(algorithm.sample(t).ids == (0,) for t in range(300))
    assert 240 < counts["by_size"] < 295
    assert 60 < counts["uniform"] < 140


def test_average_without_updates_stays() -> None:
    """A fed server that hears from nobody keeps what it has."""
    server: FedServer = tiny.Federation(tiny.blueprint("fedavg")).party("fed")
    before = server.weights()
    server.aggregate({})
    assert server.weights() is before
