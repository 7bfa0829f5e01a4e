"""HSFL (Lin et al. 2025): three tiers, gradients hop by hop, an averaging interval per tier."""

from typing import Any

import pytest
import tiny
from tiny import difference, identical

EDGES = (0, 0, 1, 1)


def plain(plan: tiny.Blueprint, rounds: int) -> tiny.State:
    """Copies of parts 1 and 2 per client and edge, stepping with mean gradients; averages at I_1 and I_2."""
    config: Any = plan.config
    clients = [tiny.state_of(tiny.cut_parts(plan)["client"]) for _ in range(4)]
    edges = [tiny.state_of(tiny.cut_parts(plan)["edge"]) for _ in range(2)]
    cloud, passed = tiny.cut_parts(plan)["main"], 0
    shares = {"uniform": [1.0] * 4, "size": list(map(float, tiny.SIZES))}[config.weights]
    for t in range(1, rounds + 1):
        stream = [list(tiny.client_batches(plan, t, i)) for i in range(4)]
        lows, mids = (
            [tiny.cut_parts(plan)["client"] for _ in range(4)],
            [tiny.cut_parts(plan)["edge"] for _ in range(2)],
        )
        for module, state in zip([*lows, *mids], [*clients, *edges], strict=True):
            module.load_state_dict(state)
        for step in range(max(map(len, stream))):
            present = [i for i in range(4) if step < len(stream[i])]
            for module in (*lows, *mids, cloud):
                module.zero_grad()
            for i in present:
                inputs, labels = stream[i][step]
                tiny.loss(cloud(mids[EDGES[i]](lows[i](inputs))), labels).backward()
            below = [1] * 4 + [sum(EDGES[i] == e for i in present) for e in range(2)] + [len(present)]
            for module, count in zip((*lows, *mids, cloud), below, strict=True):
                for p in module.parameters():
                    if p.grad is not None:
                        p.data -= config.lr * p.grad / count
            passed += 1
            if passed % config.intervals[0] == 0:
                mean = tiny.average([tiny.state_of(low) for low in lows], shares)
                for low in lows:
                    low.load_state_dict(mean)
            if passed % config.intervals[1] == 0:
                mass = [shares[0] + shares[1], shares[2] + shares[3]]
                mean = tiny.average([tiny.state_of(mid) for mid in mids], mass)
                for mid in mids:
                    mid.load_state_dict(mean)
        clients, edges = [tiny.state_of(low) for low in lows], [tiny.state_of(mid) for mid in mids]
    mass = [shares[0] + shares[1], shares[2] + shares[3]]
    return {**tiny.average(clients, shares), **tiny.average(edges, mass), **tiny.state_of(cloud)}


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("intervals", [(1, 1), (2, 3), (3, 2), (50, 50)])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str, intervals: tuple[int, int], weights: str) -> None:
    """Unequal clients under two edges, intervals that divide nothing and cross rounds."""
    plan = tiny.blueprint(
        "hsfl", model=model, edges=EDGES, intervals=intervals, weights=weights, cut_layers=(1, 2)
    )
    assert difference(tiny.run(plan), plain(plan, 2)) < 1e-12


def test_cuts_do_not_matter_when_all_average_at_once() -> None:
    """With intervals of 1 and equal batches, moving the cuts leaves the model unchanged."""
    config: dict[str, Any] = {"edges": EDGES, "intervals": (1, 1), "batch_size": 6}
    found = [tiny.run(tiny.blueprint("hsfl", (6,) * 4, "group", cut_layers=cuts, **config))
             for cuts in ((1, 2), (1, 3), (2, 3))]  # fmt: skip
    assert difference(found[0], found[1]) < 1e-12
    assert difference(found[0], found[2]) < 1e-12


def test_intervals_matter() -> None:
    """Averaging each tier more rarely is another method, tier by tier."""
    found = [tiny.run(tiny.blueprint("hsfl", edges=EDGES, intervals=i)) for i in [(1, 1), (3, 1), (1, 3)]]
    assert min(difference(found[0], found[1]), difference(found[0], found[2]), difference(*found[1:])) > 1e-6


def test_one_edge_has_nothing_to_average() -> None:
    """With a single edge its interval is irrelevant."""
    found = [tiny.run(tiny.blueprint("hsfl", model="batch", intervals=(2, i))) for i in (1, 7)]
    assert identical(*found)


def test_an_edge_per_client_is_fedavg_below_the_cloud() -> None:
    """J_m = N and a common interval: two tiers of replicas, so any cut between them is the same."""
    config: dict[str, Any] = {"edges": (0, 1, 2, 3), "intervals": (2, 2)}
    found = [
        tiny.run(tiny.blueprint("hsfl", model="group", cut_layers=cuts, **config))
        for cuts in ((1, 3), (2, 3))
    ]
    assert difference(*found) < 1e-12


def test_returning_clients_take_up_the_last_average() -> None:
    """Who missed a round starts from the fed server's average and pays for the download."""
    plan = tiny.blueprint("hsfl", edges=EDGES, participation=0.5, intervals=(1, 1))
    federation = tiny.Federation(plan)
    size = tiny.part_bytes(plan)["client"]
    for t in range(1, 5):
        now = set(federation.algorithm.sample(t).ids)
        before = set(federation.algorithm.sample(t - 1).ids) if t > 1 else now
        steps = max(federation.algorithm.num_steps(i) for i in now)
        down = federation.run(1).traffic(t)["client-fed", "down", "weights"]
        assert down == size * (2 * steps + len(now - before))
        average = federation.party("fed").weights()
        assert all(identical(federation.party("client", i).own, average) for i in now)


@pytest.mark.parametrize("model", tiny.CUTS)
def test_ledger(model: str) -> None:
    """Every hop: A(cut 1) and labels to the edge, A(cut 2) and labels to the cloud; no labels back."""
    plan = tiny.blueprint("hsfl", model=model, edges=EDGES, intervals=(2, 3), cut_layers=(1, 2))
    federation = tiny.Federation(plan).run(2)
    sizes, elements = tiny.part_bytes(plan), tiny.cut_elements(plan)
    rows = sum(tiny.samples(plan, i) for i in range(4))
    hops = {
        ("client-edge", "up", "activation"): 8 * elements["client"] * rows,
        ("client-edge", "up", "label"): 8 * rows,
        ("client-edge", "down", "gradient"): 8 * elements["client"] * rows,
        ("edge-cloud", "up", "activation"): 8 * elements["edge"] * rows,
        ("edge-cloud", "up", "label"): 8 * rows,
        ("edge-cloud", "down", "gradient"): 8 * elements["edge"] * rows,
    }
    # Three steps a round: part 1 is averaged after steps 2 and 4, 6; part 2 after 3 and 6.
    for t, clients, edges in [(1, 1, 1), (2, 2, 1)]:
        assert federation.traffic(t) == {
            **hops,
            ("client-fed", "up", "weights"): 4 * clients * sizes["client"],
            ("client-fed", "up", "counts"): 4 * clients * 8,
            ("client-fed", "down", "weights"): 4 * clients * sizes["client"],
            ("edge-cloud", "up", "weights"): 2 * edges * sizes["edge"],
            ("edge-cloud", "up", "counts"): 2 * edges * 8,
            ("edge-cloud", "down", "weights"): 2 * edges * sizes["edge"],
        }


def test_no_average_no_weights() -> None:
    """Intervals longer than the run send no weights at all."""
    federation = tiny.Federation(tiny.blueprint("hsfl", edges=EDGES, intervals=(99, 99))).run(2)
    assert federation.fleet.ledger.total(kind="weights") == 0
