"""HierFL against Liu et al. 2020, Algorithm 1, written out in plain torch."""

import pytest
import tiny
from tiny import difference, identical

EDGES = (0, 0, 1, 1)


def local(plan: tiny.Blueprint, start: tiny.State, t: int, client: int) -> tiny.State:
    """One client's round."""
    network = tiny.initial(plan)
    network.load_state_dict(start)
    tiny.fit(network, tiny.optimizer_for(plan, network, t), tiny.client_batches(plan, t, client))
    return tiny.state_of(network)


@pytest.mark.parametrize("model", tiny.CUTS)
@pytest.mark.parametrize("interval", [1, 2])
def test_plain_loop(model: str, interval: int) -> None:
    """Edges average their own clients each round, the cloud the edges every kappa_2 rounds, by samples."""
    plan = tiny.blueprint("hierfl", model=model, edges=EDGES, momentum=0.9, cloud_interval=interval)
    sizes = tiny.SIZES
    edges = [tiny.state_of(tiny.initial(plan))] * 2
    federation = tiny.Federation(plan)
    for t in (1, 2, 3):
        edges = [
            tiny.average([local(plan, edges[e], t, i) for i in who], [sizes[i] for i in who])
            for e, who in enumerate([(0, 1), (2, 3)])
        ]
        cloud = tiny.average(edges, [sizes[0] + sizes[1], sizes[2] + sizes[3]])
        if t % interval == 0:
            edges = [cloud, cloud]
        assert difference(federation.run(1).weights(), cloud) < 1e-12
        for e in range(2):
            assert difference(federation.party("edge", e).weights(), edges[e]) < 1e-12


def test_two_tiers_every_round_are_fedavg() -> None:
    """With kappa_2 = 1 the mean of means by samples is the mean."""
    hier = tiny.run(tiny.blueprint("hierfl", model="batch", edges=(0, 1, 0, 2), cloud_interval=1), 3)
    assert difference(hier, tiny.run(tiny.blueprint("fedavg", model="batch"), 3)) < 1e-12


def test_rare_cloud_rounds_differ_from_fedavg() -> None:
    """Edges that drift for a round are another method."""
    hier = tiny.run(tiny.blueprint("hierfl", edges=EDGES, cloud_interval=2))
    assert difference(hier, tiny.run(tiny.blueprint("fedavg"))) > 1e-6


def test_an_edge_without_participants_carries_no_mass() -> None:
    """Clients of size 0 leave their edge out of the cloud's mean: the rest is FedAvg bit for bit."""
    plan = tiny.blueprint("hierfl", (7, 5, 0, 0), edges=(0, 0, 1, 1), num_edges=3, cloud_interval=1)
    whole = tiny.blueprint("fedavg", (7, 5, 0, 0))
    federation = tiny.Federation(plan).run(3)
    assert identical(federation.weights(), tiny.run(whole, 3))
    assert identical(federation.party("edge", 2).weights(), federation.weights())


def test_mass_lasts_until_the_cloud_round() -> None:
    """An edge whose clients took part before but not in the cloud's round still counts."""
    plan = tiny.blueprint("hierfl", (4, 4), edges=(0, 1), participation=0.5, cloud_interval=4)
    federation = tiny.Federation(plan)
    chosen = [federation.algorithm.sample(t).ids[0] for t in range(1, 5)]
    federation.run(3)
    assert {federation.party("edge", e).mass for e in set(chosen[:3])} == {4.0}
    before = [federation.party("edge", e).weights() for e in range(2)]
    last = chosen[3]
    trained = local(plan, dict(before[last]), 4, last)
    pair = [trained if e == last else dict(before[e]) for e in range(2)]
    present = [4.0 if e in chosen else 0.0 for e in range(2)]
    assert set(chosen) == {0, 1}
    assert difference(federation.run(1).weights(), tiny.average(pair, present)) < 1e-12


@pytest.mark.parametrize("bn", ["average", "local"])
def test_ledger(bn: str) -> None:
    """Client-edge each round per participant, edge-cloud per edge in cloud rounds; a count goes up."""
    plan = tiny.blueprint("hierfl", model="batch", edges=EDGES, cloud_interval=2, bn=bn)
    federation = tiny.Federation(plan).run(2)
    state = plan.model().double().state_dict()
    up = tiny.num_bytes(
        {k: v for k, v in state.items() if bn == "average" or ("running" not in k and "num_" not in k)}
    )
    edge_round = {
        ("client-edge", "down", "weights"): 4 * tiny.num_bytes(state),
        ("client-edge", "up", "weights"): 4 * up,
        ("client-edge", "up", "counts"): 32,
    }
    assert federation.traffic(1) == edge_round
    assert federation.traffic(2) == {
        **edge_round,
        ("edge-cloud", "up", "weights"): 2 * up,
        ("edge-cloud", "up", "counts"): 16,
        ("edge-cloud", "down", "weights"): 2 * tiny.num_bytes(state),
    }


def test_scoring_between_cloud_rounds_is_free_and_changes_nothing() -> None:
    """The preview of the cloud's average moves no headline byte and no weight."""
    plan = tiny.blueprint("hierfl", edges=EDGES, cloud_interval=3)
    watched, unwatched = tiny.Federation(plan), tiny.Federation(plan)
    for _ in range(3):
        watched.run(1).weights()
    unwatched.run(3)
    assert identical(watched.weights(), unwatched.weights())
    assert watched.fleet.ledger.total() == unwatched.fleet.ledger.total()
