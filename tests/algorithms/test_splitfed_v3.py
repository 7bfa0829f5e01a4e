"""SplitFed v3 (Gawali et al. 2021): personal client parts, averaged server parts."""

import pytest
import tiny
from tiny import difference, identical


def own(state: tiny.State, client: int) -> tiny.State:
    """A client's own part."""
    prefix = f"client{client}/"
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def shared(state: tiny.State) -> tiny.State:
    """The server part."""
    return {name: value for name, value in state.items() if not name.startswith("client")}


@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str) -> None:
    """Each client goes on from its own part; gradients of one client never reach another's step."""
    plan = tiny.blueprint("splitfed_v3", model=model, momentum=0.9)
    mine = [tiny.state_of(tiny.cut_parts(plan)["client"]) for _ in range(4)]
    server = tiny.state_of(tiny.cut_parts(plan)["main"])
    for t in (1, 2):
        replicas = []
        for client in range(4):
            whole = tiny.initial(plan)
            whole.load_state_dict({**mine[client], **server})
            tiny.fit(whole, tiny.optimizer_for(plan, whole, t), tiny.client_batches(plan, t, client))
            state = tiny.state_of(whole)
            mine[client] = {name: state[name] for name in mine[client]}
            replicas.append({name: state[name] for name in server})
        server = tiny.average(replicas, tiny.SIZES)
    found = tiny.run(plan)
    assert difference(shared(found), server) < 1e-12
    assert all(difference(own(found, client), mine[client]) < 1e-12 for client in range(4))


def test_client_parts_change_in_their_own_turns_only() -> None:
    """A part stays bit for bit while its client is away and moves when it takes part."""
    federation = tiny.Federation(tiny.blueprint("splitfed_v3", participation=0.5))
    before = federation.weights()
    for t in range(1, 5):
        after = federation.run(1).weights()
        chosen = federation.algorithm.sample(t).ids
        for client in range(4):
            assert identical(own(before, client), own(after, client)) == (client not in chosen)
        before = after


def test_parts_drift_apart() -> None:
    """On different data the client parts differ, unlike v1's."""
    found = tiny.run(tiny.blueprint("splitfed_v3"))
    assert difference(own(found, 0), own(found, 1)) > 1e-4


def test_who_never_took_part_is_scored_with_the_initial_part() -> None:
    """Cold start: the own part is the initial one and scores without NaN."""
    plan = tiny.blueprint("splitfed_v3", (4, 0, 4))
    federation = tiny.Federation(plan).run(2)
    assert identical(own(federation.weights(), 1), tiny.state_of(tiny.cut_parts(plan)["client"]))
    scores = federation.fleet.gather(
        federation.algorithm.clients.score(*federation.algorithm.personal_model(2))
    )
    assert all(0 < everywhere.loss < 100 for everywhere, _ in scores.values())
    assert [len(scored.predictions) for _, scored in scores.values()] == [4, 4, 4]


@pytest.mark.parametrize("model", tiny.CUTS)
def test_ledger(model: str) -> None:
    """v1 without its weights: nothing goes to or from a fed server."""
    config = {"model": model, "participation": 0.5, "local_epochs": 2}
    v1 = tiny.Federation(tiny.blueprint("splitfed_v1", **config)).run(1).traffic(1)
    v3 = tiny.Federation(tiny.blueprint("splitfed_v3", **config)).run(1).traffic(1)
    assert v3 == {line: count for line, count in v1.items() if line[0] != "client-fed"}
    assert len(v3) == 3
