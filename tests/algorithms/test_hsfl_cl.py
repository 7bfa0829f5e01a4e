"""HSFL with contrast: one gradient more at client and edge, and nothing more on the wire."""

import tiny
from tiny import difference, identical
from torch import Tensor

from rayfl.algorithms.sfp.contrast import directions, supcon


def test_without_weight_it_is_hsfl() -> None:
    settings = {"model": "group", "edges": (0, 0, 1, 1), "intervals": (2, 3)}
    usual = tiny.Federation(tiny.blueprint("hsfl", **settings)).run(2)
    found = tiny.Federation(tiny.blueprint("hsfl_cl", cl_weight=0.0, **settings)).run(2)
    assert identical(usual.weights(), found.weights())
    other = tiny.Federation(tiny.blueprint("hsfl_cl", **settings)).run(2)
    assert difference(other.weights(), usual.weights()) > 1e-6
    assert all(other.traffic(t) == usual.traffic(t) for t in (1, 2))


def test_one_step_is_the_sum_of_three_losses() -> None:
    """One client, one edge: the end-to-end gradient, and a contrast at the client's and the edge's outputs,
    the latter's reaching down to the client."""
    plan = tiny.blueprint(
        "hsfl_cl", (4,), "group", edges=(0,), cut_layers=(1, 2), cl_weight=0.7, tau=0.3, batch_size=4
    )
    parts = tiny.cut_parts(plan)
    ((inputs, labels),) = tiny.client_batches(plan, 1, 0)

    def contrast(features: Tensor) -> Tensor:
        return 0.7 * supcon(directions(features), labels, 0.3)

    low = parts["client"](inputs)
    mid = parts["edge"](low)
    (tiny.loss(parts["main"](mid), labels) + contrast(low) + contrast(mid)).backward()
    wanted = {
        name: (value - plan.config.lr * value.grad).detach() if value.grad is not None else value.detach()
        for part in parts.values()
        for name, value in part.named_parameters()
    }
    assert len(labels.unique()) < 4, "some class twice"
    assert difference(tiny.run(plan, 1), wanted) < 1e-12


def test_rounds_as_the_unit_of_intervals() -> None:
    """With three steps a round, every round is every third step."""
    sizes = {"sizes": (12,) * 4, "edges": (0, 0, 1, 1), "model": "mlp"}
    steps = tiny.Federation(tiny.blueprint("hsfl", intervals=(3, 6), **sizes)).run(4)
    rounds = tiny.Federation(tiny.blueprint("hsfl", intervals=(1, 2), interval_unit="rounds", **sizes)).run(4)
    assert identical(steps.weights(), rounds.weights())
    assert all(steps.traffic(t) == rounds.traffic(t) for t in range(1, 5))
