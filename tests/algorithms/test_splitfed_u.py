"""SplitFed U (U shape: Vepakomma et al. 2018): both ends on the client, labels at home, closed-form bytes."""

import pytest
import tiny

from rayfl.errors import UserError

TWO_CUTS = [("mlp", 1, 2), ("batch", 1, 3), ("group", 2, 3)]


@pytest.mark.parametrize(("model", "first", "last"), TWO_CUTS)
def test_the_parts_are_the_ends_and_the_middle(model: str, first: int, last: int) -> None:
    plan = tiny.blueprint("splitfed_u", model=model, cut_layer=first, tail_layer=last)
    parts = {part: list(module._modules) for part, module in tiny.cut_parts(plan).items()}
    names = list(tiny.initial(plan)._modules)
    assert parts == {"client": names[:first] + names[last:], "main": names[first:last]}


def test_by_default_the_client_keeps_the_head_alone() -> None:
    parts = tiny.cut_parts(tiny.blueprint("splitfed_u", model="group"))
    assert list(parts["client"]._modules) == ["block0", "block3"]


def test_cuts_that_leave_the_server_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="cuts must go up"):
        tiny.cut_parts(tiny.blueprint("splitfed_u", model="group", cut_layer=2, tail_layer=2))


@pytest.mark.parametrize(("model", "first", "last"), TWO_CUTS)
def test_ledger(model: str, first: int, last: int) -> None:
    """Per batch of b samples: e A1 b up, e A2 b down, as much back as gradients; no label at all."""
    config = {"cut_layer": first, "tail_layer": last, "participation": 0.5, "local_epochs": 2}
    plan = tiny.blueprint("splitfed_u", model=model, **config)
    federation = tiny.Federation(plan).run(2)
    whole = tiny.initial(plan)
    inputs = plan.train.batch(plan.client_rows[0][:2], tiny.torch.float64, "cpu")[0]
    with tiny.torch.no_grad():
        below, above = (whole[:cut](inputs).numel() // 2 for cut in (first, last))
    client = tiny.state_of(tiny.cut_parts(plan)["client"])
    for t in (1, 2):
        chosen = federation.algorithm.sample(t).ids
        rows = sum(len(batch[1]) for i in chosen for batch in tiny.client_batches(plan, t, i))
        assert federation.traffic(t) == {
            ("client-main", "up", "activation"): 8 * below * rows,
            ("client-main", "down", "activation"): 8 * above * rows,
            ("client-main", "up", "gradient"): 8 * above * rows,
            ("client-main", "down", "gradient"): 8 * below * rows,
            ("client-fed", "down", "weights"): 2 * tiny.num_bytes(client),
            ("client-fed", "up", "weights"): 2 * tiny.num_bytes(client),
            ("client-fed", "up", "counts"): 2 * 8,
        }
