"""SplitFed v2 (Thapa et al. 2022): one server-side model, visited in an explicit order."""

from collections.abc import Mapping
from typing import Any

import pytest
import tiny
from tiny import difference, identical

from rayfl import roles
from rayfl.algorithms import splitfed_v2
from rayfl.algorithms.splitfed_v2 import SplitFedV2, visiting_order
from rayfl.messages import Gradient


def visits(plan: tiny.Blueprint, t: int) -> list[tuple[int, int]]:
    """(client, its batch) in the documented order."""
    steps = [len(list(tiny.client_batches(plan, t, i))) for i in range(plan.facts.num_clients)]
    if plan.config.visits == "client_major":  # type: ignore[attr-defined]
        return [
            (i, k) for i in visiting_order(plan.facts.seed, t, 0, range(len(steps))) for k in range(steps[i])
        ]
    return [
        (i, k)
        for k in range(max(steps))
        for i in visiting_order(plan.facts.seed, t, k, [i for i, n in enumerate(steps) if n > k])
    ]


@pytest.mark.parametrize("order", ["batch_major", "client_major"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str, order: str) -> None:
    """Server momentum over all visits of a round, a client part and momentum each, client parts averaged."""
    plan = tiny.blueprint("splitfed_v2", model=model, visits=order, momentum=0.9)
    server = tiny.cut_parts(plan)["main"]
    start = tiny.state_of(tiny.cut_parts(plan)["client"])
    for t in (1, 2):
        parts = [tiny.cut_parts(plan)["client"] for _ in range(4)]
        for part in parts:
            part.load_state_dict(start)
        optimizers = [tiny.optimizer_for(plan, part, t) for part in parts]
        server_optimizer = tiny.optimizer_for(plan, server, t)
        stream = [list(tiny.client_batches(plan, t, i)) for i in range(4)]
        for client, batch in visits(plan, t):
            inputs, labels = stream[client][batch]
            optimizers[client].zero_grad()
            server_optimizer.zero_grad()
            tiny.loss(server(parts[client](inputs)), labels).backward()
            optimizers[client].step()
            server_optimizer.step()
        start = tiny.average([tiny.state_of(part) for part in parts], tiny.SIZES)
    assert difference(tiny.run(plan), {**start, **tiny.state_of(server)}) < 1e-12


class FrozenClients(SplitFedV2):
    """v2 with a client learning rate of 0."""

    class Client(roles.SplitClient):
        """Never steps."""

        def backward(self, gradient: Gradient) -> None:
            """Ignore the answer."""


def test_frozen_clients_leave_central_training_of_the_server() -> None:
    """With eta_C = 0 and one batch each, the server follows SGD over the visiting order on fixed features."""
    plan = tiny.blueprint(FrozenClients, batch_size=50, momentum=0.9)
    parts = tiny.cut_parts(plan)
    for t in (1, 2):
        optimizer = tiny.optimizer_for(plan, parts["main"], t)
        for client, _ in visits(plan, t):
            stream = [(parts["client"](x).detach(), y) for x, y in tiny.client_batches(plan, t, client)]
            tiny.fit(parts["main"], optimizer, stream)
    state = {**tiny.state_of(parts["client"]), **tiny.state_of(parts["main"])}
    assert difference(tiny.run(plan), state) < 1e-14


def test_the_visiting_order_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seed, same bits; the reverse order gives another model, so clients do share one server part."""
    plan = tiny.blueprint("splitfed_v2")
    first = tiny.run(plan)
    assert identical(first, tiny.run(plan))

    def backwards(seed: int, t: int, step: int, clients: Any) -> list[int]:
        return visiting_order(seed, t, step, clients)[::-1]

    monkeypatch.setattr(splitfed_v2, "visiting_order", backwards)
    assert difference(first, tiny.run(plan)) > 1e-6


def test_order_is_the_same_whoever_is_present() -> None:
    """Leaving out clients keeps the order of the others; rounds and steps shuffle anew."""
    everybody = visiting_order(0, 1, 0, range(20))
    assert visiting_order(0, 1, 0, range(0, 20, 3)) == [i for i in everybody if i % 3 == 0]
    assert everybody not in (visiting_order(0, 2, 0, range(20)), visiting_order(0, 1, 1, range(20)))
    assert sorted(everybody) == list(range(20)) != everybody


def test_the_server_holds_one_model() -> None:
    """One module however many clients; it makes a step per client batch, T_1 + ... + T_m in all."""
    steps = []

    class Counted(SplitFedV2):
        class MainServer(SplitFedV2.MainServer):
            def learn(self, learner: Any, batch: Any) -> Gradient:
                steps.append(len(batch.labels))
                return super().learn(learner, batch)

    federation = tiny.Federation(tiny.blueprint(Counted)).run(1)
    assert isinstance(federation.party("main").current, Mapping)
    assert len(federation.party("main").host._shelf["main"]) == 1
    assert (len(steps), sum(steps)) == (2 + 1 + 3 + 2, sum(tiny.SIZES))


@pytest.mark.parametrize("model", tiny.CUTS)
def test_ledger(model: str) -> None:
    """The bytes of v1, in either order of visits."""
    lines = [
        tiny.Federation(tiny.blueprint(method, model=model, participation=0.5, **options)).run(1).traffic(1)
        for method, options in [
            ("splitfed_v1", {}),
            ("splitfed_v2", {"visits": "batch_major"}),
            ("splitfed_v2", {"visits": "client_major"}),
        ]
    ]
    assert lines[0] == lines[1] == lines[2]
