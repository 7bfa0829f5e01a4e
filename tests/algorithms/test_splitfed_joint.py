"""SplitFed with one joint server step (FedSGA, eqs. 9-10): the mean of the clients' losses."""

import pytest
import tiny
from tiny import difference

NORMS = ["per_client_mean", "merged_mean", "sum"]


def plain(plan: tiny.Blueprint, rounds: int, steps: dict[int, int]) -> tiny.State:
    """Each step: every client present steps by its own mean loss, the server once by their weighted sum."""
    server = tiny.cut_parts(plan)["main"]
    start = tiny.state_of(tiny.cut_parts(plan)["client"])
    norm = plan.config.loss_norm  # type: ignore[attr-defined]
    for t in range(1, rounds + 1):
        parts = {i: tiny.cut_parts(plan)["client"] for i in steps}
        optimizers = {}
        for i, part in parts.items():
            part.load_state_dict(start)
            optimizers[i] = tiny.optimizer_for(plan, part, t)
        server_optimizer = tiny.optimizer_for(plan, server, t)
        stream = {i: list(tiny.client_batches(plan, t, i, n)) for i, n in steps.items()}
        for step in range(max(steps.values())):
            present = [i for i in steps if step < steps[i]]
            total = sum(len(stream[i][step][1]) for i in present)
            server_optimizer.zero_grad()
            for i in present:
                inputs, labels = stream[i][step]
                share = {"per_client_mean": 1 / len(present), "merged_mean": len(labels) / total, "sum": 1.0}[
                    norm
                ]
                optimizers[i].zero_grad()
                smashed = parts[i](inputs)
                received = smashed.detach().requires_grad_()
                (share * tiny.loss(server(received), labels)).backward()
                smashed.backward(received.grad / share)
                optimizers[i].step()
            server_optimizer.step()
        start = tiny.average([tiny.state_of(part) for part in parts.values()], [tiny.SIZES[i] for i in parts])
    return {**start, **tiny.state_of(server)}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str, norm: str) -> None:
    """All clients make the mean number of steps, short ones reshuffling: (2 + 1 + 3 + 2) / 4 = 2 a round."""
    plan = tiny.blueprint("splitfed_joint", model=model, loss_norm=norm, momentum=0.9)
    assert difference(tiny.run(plan), plain(plan, 2, dict.fromkeys(range(4), 2))) < 1e-12


def test_drop_out() -> None:
    """``short_clients: drop_out`` ends a client with its data: 2, 1, 3 and 2 steps."""
    plan = tiny.blueprint("splitfed_joint", short_clients="drop_out", momentum=0.9)
    assert difference(tiny.run(plan), plain(plan, 2, {0: 2, 1: 1, 2: 3, 3: 2})) < 1e-12
    assert difference(tiny.run(plan), tiny.run(tiny.blueprint("splitfed_joint", momentum=0.9))) > 1e-6


def test_norms_differ_on_unequal_batches() -> None:
    """Equal shares, shares by batch size and a plain sum are three methods."""
    found = [
        tiny.run(tiny.blueprint("splitfed_joint", (4, 2), loss_norm=norm, local_steps=1), 1) for norm in NORMS
    ]
    assert min(difference(found[0], found[1]), difference(found[0], found[2]), difference(*found[1:])) > 1e-5


def test_clients_get_the_undivided_gradient() -> None:
    """A client's step doesn't shrink with the number of clients: one step = FedAvg's, for the client part."""
    config = {"local_steps": 1, "batch_size": 4}
    joint = tiny.run(tiny.blueprint("splitfed_joint", **config), 1)
    whole = tiny.run(tiny.blueprint("fedavg", **config), 1)
    names = [name for name in joint if name.startswith("block0")]
    assert difference({n: joint[n] for n in names}, {n: whole[n] for n in names}) < 1e-14


@pytest.mark.parametrize(("short", "rows"), [("cycle", 7 + 6 + 8 + 5), ("drop_out", 7 + 3 + 10 + 5)])
def test_ledger(short: str, rows: int) -> None:
    """Bytes follow the batches really sent: two steps of at most 4 rows each, or each client's own data."""
    plan = tiny.blueprint("splitfed_joint", short_clients=short)
    size, elements = tiny.part_bytes(plan)["client"], tiny.cut_elements(plan)["client"]
    assert tiny.Federation(plan).run(1).traffic(1) == {
        ("client-main", "up", "activation"): 8 * elements * rows,
        ("client-main", "up", "label"): 8 * rows,
        ("client-main", "down", "gradient"): 8 * elements * rows,
        ("client-fed", "down", "weights"): 4 * size,
        ("client-fed", "up", "weights"): 4 * size,
        ("client-fed", "up", "counts"): 32,
    }
