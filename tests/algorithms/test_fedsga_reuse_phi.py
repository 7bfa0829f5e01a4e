"""FedSGA where clients embed by the server's projector: what they see of themselves, and what that costs."""

from typing import Any

import pytest
import tiny
import torch
from test_fedsga import EQUAL, SMALL, plan_of
from tiny import identical
from torch import Tensor, nn

from rayfl.algorithms.sga.signals import pooled
from rayfl.errors import UserError
from rayfl.messages import weigh

REUSE: dict[str, Any] = {"phi_s": "reuse_phi"}


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


@pytest.mark.parametrize(
    "options", [{}, {"server_body": "none"}, {"ablate": "harmon"}, {"projector": "plain"}], ids=str
)
def test_alignment_is_that_of_the_servers_own_embedding(options: dict[str, Any]) -> None:
    """a = mean cos(phi(pooled, e(p_1)), C_y) by the main server's head and prototypes as the round begins."""
    plan = plan_of(EQUAL, e_init_std=1.0, lr=0.3, **REUSE, **options)
    federation = tiny.Federation(plan).run(2)
    whole, known = federation.weights(), federation.party("main").memory.current
    prompts = [federation.party("client", i).private for i in range(4)]
    federation.run(1)
    for i in range(4):
        model: Any = tiny.initial(plan).eval()
        model.load_state_dict({**whole, **prompts[i], "harmoniser.depth": torch.tensor(1)})
        inputs, labels = next(tiny.client_batches(plan, 3, i))
        with torch.no_grad():
            z = model[-1].embed(pooled(nn.Sequential(*model[: model.ends[0]])(inputs)), 1)
        own = [cosine(z[b], known.directions[y]) for b, y in enumerate(labels) if known.seen[y]]
        assert federation.party("fed").observed[i][0] == pytest.approx(sum(own) / len(own), abs=1e-12)


def test_nobody_has_a_projection_of_their_own() -> None:
    """It is neither trained nor averaged nor sent up: no entry has its name."""
    federation = tiny.Federation(plan_of(EQUAL, **REUSE)).run(2)
    assert not [name for name in federation.weights() if name.startswith("signal.")]


@pytest.mark.parametrize("body", ["remaining", "none"])
def test_ledger(body: str) -> None:
    """The projector comes down to each participant; phi_s goes neither way. All else is as it was."""
    options: dict[str, Any] = {"strategy": "static", "participation": 0.75, "server_body": body}
    learned, reused = (tiny.Federation(plan_of(EQUAL, **options, **o)).run(2) for o in ({}, REUSE))
    d_z, d_hid, d_e, c = SMALL["d_z"], SMALL["d_hid"], SMALL["d_e"], 4
    size = d_hid if body == "none" else c
    projector = 2 * size + d_e + (size + d_e) * d_hid + d_hid + d_hid * d_z + d_z
    projector += c * size + size if body == "none" else 0
    phi_s = 2 * c + c * d_z + d_z
    expected = dict(learned.traffic(2))
    expected["client-fed", "down", "weights"] -= 3 * 8 * phi_s
    expected["client-fed", "up", "weights"] -= 3 * 8 * phi_s
    expected["client-main", "down", "weights"] = 3 * 8 * projector
    assert reused.traffic(2) == expected


def test_what_is_sent_does_not_follow_the_training() -> None:
    """The round's message is read-only; the next round's differs."""
    federation = tiny.Federation(plan_of(EQUAL, **REUSE)).run(1)
    main = federation.party("main")
    main.start_round(2)
    sent = main.prototypes()
    before = {name: value.clone() for name, value in sent.projector.items()}
    assert weigh(sent)["weights"] == tiny.num_bytes(before)
    with torch.no_grad():
        for parameter in main.learner.model.parameters():
            parameter.add_(1.0)
    assert identical(dict(sent.projector), before)
    assert not identical(dict(main.prototypes().projector), before)


def test_refused_where_it_does_not_fit() -> None:
    """Five channels at p_1, four behind the backbone; without a body it fits."""
    with pytest.raises(UserError, match="takes 4 channels, got 5 from block 'block0'"):
        tiny.Federation(plan_of(EQUAL, "mlp", **REUSE))
    tiny.Federation(plan_of(EQUAL, "mlp", server_body="none", **REUSE)).run(1)
