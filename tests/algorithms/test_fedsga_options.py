"""FedSGA with all that can be asked of it: every option, few samples, late clients, layouts."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from test_fedsga import EQUAL, SMALL, at_depths, plan_of
from test_fleets import LAYOUTS
from tiny import difference, identical

from rayfl.algorithms import ALGORITHMS
from rayfl.errors import UserError

pytestmark = pytest.mark.slow

OFTEN: dict[str, Any] = {"calib_every": 2, "calib_offset": 1}
OPTIONS: list[dict[str, Any]] = [
    *({"ablate": value} for value in ("all", "adapt", "suff_est", "harmon")),
    *({"strategy": value} for value in ("static", "random")),
    *({"strategy": "static", "ablate": value} for value in ("adapt", "harmon")),
    *({"probe": value} for value in ("linear", "start", "end")),
    *({"cnn_prompt": value} for value in ("add_mean", "pad", "none")),
    {"num_prompts": 0},
    {"num_prompts": 1, "prompt_init_std": 0.5, "prompt_lr_mult": 0.0},
    *({"eval_prompt": value} for value in ("own", "none")),
    {"tau_m": 0.01, "score_reduce": "abs_of_mean", "score_norm": "max"},
    *({"obs_norm": value} for value in ("raw", "running_z", "cohort")),
    {"obs_batches": 3},
    {"phi_s": "fixed_random"},
    *({"phi_s": "reuse_phi", **more} for more in ({}, {"server_body": "none"}, {"ablate": "harmon"})),
    *({"estimator_location": "client", **more} for more in ({}, {"obs_norm": "raw"}, {"ablate": "suff_est"})),
    {"phi_loss": "contrastive", "phi_lr_mult": 0.0},
    *({"server_reduce": value} for value in ("mean", "sum")),
    {"server_bn": "merged"},
    {"client_aggregation": "none"},
    {"short_clients": "drop_out"},
    {"lambda_align": 2.0, "tau_a": 0.1, "proto_momentum": 0.0},
    {"proto_momentum": 1.0},
    {"proto_update": "step"},
    {"projector": "plain", "e_init_std": 1.0},
    {"projector": "plain", "server_body": "none"},
    *({"server_body": "none", "ablate": value} for value in ("none", "harmon", "adapt", "all")),
    {"server_body": "none", "client_aggregation": "none", "probe": "linear"},
    {"rho": 0.0, "beta": 0.0, "p_ref": 1},
    {"rho": 5.0, "p_ref": 3},
    *({"estimator": {"constraint": value}} for value in ("square", "abs")),
    *({"estimator": {"r_prev": value}} for value in ("free", "off")),
    {"estimator": {"scope": "per_client", "balance": True, "buffer": 1, "hidden": 1, "steps": 2}},
    {"weights": "uniform", "optimizer": "adam", "lr": 0.01, "reset_optimizer": "keep"},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 1.0},
    {"loss_reduction": "sum", "lr": 0.01, "weights": "batch"},
    {"bn": "local"},
    {"bn": "local", "client_aggregation": "none"},
    {"participation": 0.5, "sampling": "by_size", "local_steps": 3},
]


def finite(federation: tiny.Federation) -> bool:
    """Weights, figures and scores."""
    report = federation.algorithm.report(federation.t)
    return all(bool(value.isfinite().all()) for value in federation.weights().values()) and bool(
        np.isfinite(list(report.values())).all()
    )


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    nested = given.get("estimator")
    return {
        **given,
        **({"estimator": type(ALGORITHMS["fedsga"].Config().estimator)(**nested)} if nested else {}),
    }  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()))
def test_every_option_trains(options: dict[str, Any]) -> None:
    """Three rounds, of which two calibrate, are finite, change the model, and the result can be scored."""
    federation = tiny.Federation(plan_of(tiny.SIZES, "batch", **{**OFTEN, **options_of(options)}))
    before = federation.weights()
    federation.run(3)
    assert finite(federation)
    assert difference(federation.weights(), before) > 1e-6
    algorithm = federation.algorithm
    with federation.fleet.phase("evaluation"):
        if algorithm.is_personal(algorithm.config):
            scores = [federation.fleet.gather(algorithm.clients.score(*algorithm.personal_model(3)))]
        else:
            versions = algorithm.versions(3)
            assert sum(share for share, _ in versions) == pytest.approx(1.0)
            evaluators = federation.fleet.group("evaluator")
            scores = [federation.fleet.gather(evaluators.score(*parts)) for _, parts in versions]
    assert all(np.isfinite(one.loss) for each in scores for pair in each.values() for one in pair)


def test_a_full_buffer_forgets_the_oldest() -> None:
    """And each client has its own estimator where asked."""
    config = options_of({"estimator": {"scope": "per_client", "buffer": 2}})
    fed = tiny.Federation(plan_of(EQUAL, calib_every=1, **config)).run(3).party("fed")
    assert {scope: len(rows) for scope, rows in fed.estimators.examples.items()} == dict.fromkeys(range(4), 2)
    assert len(fed.estimators.made) == 4


@pytest.mark.parametrize("model", tiny.CUTS)
def test_clients_change_depth(model: str) -> None:
    """Drawn anew per client and round: all depths are met, in one step and by one client."""
    federation = tiny.Federation(plan_of(EQUAL, model, strategy="random", **OFTEN))
    met = []
    for _ in range(6):
        federation.run(1)
        assert finite(federation)
        met.append(tuple(federation.party("fed").depths[i] for i in range(4)))
    assert all(len({depths[i] for depths in met}) > 1 for i in range(4))
    assert any(len(set(depths)) > 1 for depths in met)
    assert {depth for depths in met for depth in depths} == set(range(1, len(tiny.CUTS[model]) + 1))


def test_a_client_that_joins_late() -> None:
    """Whenever its first round is, both drifts count as 1 and the sufficiency before it as r0."""
    federation = tiny.Federation(plan_of(EQUAL, participation=0.5))
    fed, known = federation.party("fed"), {}
    for t in range(1, 7):
        federation.run(1)
        for client, (a, drift, prompt_drift, last) in fed.observed.items():
            assert last == known.get(client, 0.5)
            assert (drift == 1.0) is (prompt_drift == 1.0) is (client not in known)
            assert (a == 0.0) is (t == 1)
        known |= {client: fed.sufficiency[client] for client in fed.observed}
    assert known.keys() == fed.candidates().keys() == {0, 1, 2, 3}


def test_a_class_never_seen() -> None:
    """Has no prototype, costs nothing, and is scored all the same."""
    train = tiny.memory("group", sum(EQUAL), 1)
    train = tiny.Memory(train.inputs, np.where(train.labels == 1, 0, train.labels))
    plan = tiny.blueprint(
        "fedsga", EQUAL, "group", train=train, candidates=(1, 2, 3), probe="linear", **OFTEN, **SMALL
    )
    federation = tiny.Federation(plan).run(3)
    assert finite(federation)
    found = federation.party("main").prototypes()
    assert found.seen.tolist() == [True, False, True]
    assert found.directions[1].abs().max() == 0
    assert torch.allclose(found.directions[[0, 2]].norm(dim=1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("probe", ["end", "linear", "start"])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 2, 3, 4, 5), {}),
        ((1, 2, 3, 4, 5), {"batch_size": 1}),
        ((1, 2, 3), {}),
        ((4, 5, 6), {"local_epochs": 0}),
        ((0, 9), {"batch_size": 3, "drop_last": True}),
    ],
    ids=str,
)
def test_few_samples_on_a_calibration_round(sizes: Any, options: dict[str, Any], probe: str) -> None:
    """From four samples on clients are asked; all train, on at least three quarters of their data."""
    federation = tiny.Federation(plan_of(sizes, calib_every=1, probe=probe, **options))
    for _ in range(2):
        federation.run(1)
        assert finite(federation)
        assert sorted(federation.party("fed").verdicts) == [i for i, n in enumerate(sizes) if n >= 4]


def test_clients_that_keep_their_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``client_aggregation: none``: who deepens takes the server's blocks, who stays keeps its own."""
    at_depths(monkeypatch, (1, 2))
    federation = tiny.Federation(plan_of((6, 6), client_aggregation="none"))
    assert federation.algorithm.is_personal(federation.plan.config)
    federation.run(1)
    shared, first = federation.weights(), [federation.party("client", i) for i in range(2)]
    own = [dict(client.own) for client in first]
    assert not any(name.startswith("block1") for name in own[0])
    assert difference({"": own[0]["block0.0.weight"]}, {"": own[1]["block0.0.weight"]}) > 1e-9
    assert federation.fleet.ledger.total(kind="weights", direction="up") == 0
    at_depths(monkeypatch, (2, 1))
    met: list[tiny.State] = []
    for client in first:

        def start(decision: Any, client: Any = client, start: Any = client.start) -> None:
            met.append(tiny.state_of(client.model))
            start(decision)

        client.start = start
    federation.run(1)
    assert all(torch.equal(met[i][name], own[i][name]) for i in range(2) for name in own[i])
    assert torch.equal(met[0]["block1.0.weight"], shared["block1.0.weight"])
    assert not torch.equal(met[1]["block1.0.weight"], shared["block1.0.weight"])
    assert not any(name.startswith("block1") for name in first[1].own)


@pytest.mark.parametrize("model", ["mlp", "group"])
def test_merged_passes_are_single_passes(model: str) -> None:
    """Without BatchNorm it is the same whether clients of one depth go through the server together."""
    runs = [
        tiny.run(plan_of(tiny.SIZES, model, server_bn=how, strategy="random", num_prompts=2), 3)
        for how in ("per_client", "merged")
    ]
    assert difference(*runs) < 1e-10


def test_merged_passes_mix_statistics() -> None:
    """With BatchNorm it isn't."""
    plans = [
        plan_of(EQUAL, "batch", server_bn=how, strategy="static", p_ref=1) for how in ("per_client", "merged")
    ]
    runs = [tiny.run(plan, 1) for plan in plans]
    names = [name for name in runs[0] if name.endswith("weight")]
    assert difference(*({n: run[n] for n in names} for run in runs)) > 1e-6


def test_prototypes_that_move_every_step() -> None:
    """Twice as many steps, twice as many moves: with mu = 0 they are the last batch's means."""
    found = {}
    for update in ("round", "step"):
        main = tiny.Federation(plan_of(EQUAL, proto_update=update, proto_momentum=0.0)).run(1).party("main")
        found[update] = main.prototypes().directions
    assert (found["round"] - found["step"]).abs().max() > 1e-6


def test_local_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """``bn: local``: a client is scored with its own statistics up to its depth, the server's above."""
    at_depths(monkeypatch, (1, 2))
    federation = tiny.Federation(plan_of((6, 6), "batch", bn="local")).run(2)
    algorithm, fleet, plan = federation.algorithm, federation.fleet, federation.plan
    scores = fleet.gather(algorithm.clients.score(*algorithm.personal_model(2)))
    inputs, labels = plan.test.batch(np.arange(12), torch.float64, "cpu")
    for i in range(2):
        client, whole = federation.party("client", i), tiny.initial(plan).eval()
        state = {**fleet.gather(algorithm.fed.weights()), **client.private}
        state |= {name: value for name, value in client.kept.buffers.items() if name.startswith("block0")}
        main = federation.party("main").current
        state |= {name: value for name, value in main.items() if name not in state or "running" in name}
        if i == 1:
            state |= {name: client.kept.buffers[name] for name in client.kept.buffers}
        whole.load_state_dict({**state, "harmoniser.depth": torch.tensor(i + 1)})
        assert scores[i][0].loss == pytest.approx(12 * tiny.loss(whole(inputs), labels).item(), abs=1e-9)


def prompts_scored(federation: tiny.Federation) -> torch.Tensor:
    _, (*_, prompts) = federation.algorithm.versions(federation.t)[0]
    tokens: torch.Tensor = prompts["prompts.tokens"]
    return tokens


def test_prompts_of_the_scored_model() -> None:
    """The clients' mean, or none."""
    federation = tiny.Federation(plan_of(tiny.SIZES)).run(1)
    each = [federation.party("client", i).private["prompts.tokens"] for i in range(4)]
    assert (prompts_scored(federation) - torch.stack(each).mean(0)).abs().max() < 1e-12
    without = tiny.Federation(plan_of(tiny.SIZES, eval_prompt="none")).run(1)
    assert prompts_scored(without).abs().max() == 0


SEALED: list[dict[str, Any]] = [
    {"calib_every": 1},
    {"calib_every": 1, "probe": "linear", "proto_update": "step", "server_bn": "merged"},
    {"strategy": "random", "momentum": 0.9, "reset_optimizer": "keep"},
    {"calib_every": 1, "phi_s": "reuse_phi", "estimator_location": "client"},
    {"bn": "local", "calib_every": 1, "client_aggregation": "none"},
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2 separate", "4 colocated", "one each, separate"])
@pytest.mark.parametrize("options", SEALED, ids=lambda o: ",".join(map(str, o.values())))
def test_sealed_is_local(options: dict[str, Any], layout: str) -> None:
    """Hosts that only exchange serialised copies give the same weights, bytes and figures."""
    plan = plan_of((7, 3, 10, 5, 4, 6), "batch", participation=0.7, **options)
    here, there = tiny.Federation(plan), tiny.Federation(plan, tiny.sealed(plan, **LAYOUTS[layout]))
    assert identical(here.run(2).weights(), there.run(2).weights())
    assert here.algorithm.report(2) == there.algorithm.report(2)
    assert +here.fleet.ledger.bytes == +there.fleet.ledger.bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"candidates": ()}, "candidates is empty"),
        ({"candidates": (2, 1)}, "cuts must go up"),
        ({"candidates": ("block9",)}, "no block is called 'block9'"),
        ({"p_ref": 4}, "p_ref=4 must be one of 3 candidates"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        tiny.Federation(plan_of(EQUAL, **options))
    assert "\n" not in str(caught.value)


def test_without_prompts_nothing_of_them_drifts() -> None:
    """q := 0 from the first round on, where feature drift still counts as 1."""
    federation = tiny.Federation(tiny.blueprint("fedsga", model="group", ablate="adapt")).run(1)
    first = federation.party("fed").observed
    assert {(delta, q) for _, delta, q, _ in first.values()} == {(1.0, 0.0)}
    later = federation.run(1).party("fed").observed
    assert {q for _, _, q, _ in later.values()} == {0.0}
    assert all(0 < delta != 1 for _, delta, _, _ in later.values())
