"""H-SFP: three tiers that train apart, what crosses between them, and when."""

import math
from collections import Counter
from typing import Any

import pytest
import tiny
import torch
from tiny import difference, identical
from torch import nn

from rayfl.algorithms.sfp import gaussians
from rayfl.algorithms.sfp.messages import unpacked
from rayfl.errors import UserError

EDGES = (0, 0, 1, 1)
SMALL: dict[str, Any] = {
    "edges": EDGES, "model": "group", "lr": 0.01, "syn_per_class": 4, "edge_epochs": 1, "cloud_epochs": 1,
    "local_epochs": 1, "cut_layers": (1, 2), "weight_decay": 0.0,
}  # fmt: skip


def plan(**config: Any) -> tiny.Blueprint:
    """Four clients under two edges."""
    return tiny.blueprint("hsfp", **{**SMALL, **config})


def kinds(federation: tiny.Federation) -> set[tuple[str, str, str]]:
    """(link, direction, kind) of all that was sent but for scoring."""
    return {
        (line.link, line.direction, line.kind)
        for line, count in federation.fleet.ledger.bytes.items()
        if count and line.phase != "evaluation"
    }


def test_moments_and_counts_go_up_and_weights_on_schedule() -> None:
    """Nothing else crosses a tier, and no gradient comes down."""
    up = {(link, "up", kind) for link in ("client-edge", "edge-cloud") for kind in ("moments", "counts")}
    assert kinds(tiny.Federation(plan(intervals=(None, None))).run(3)) == up
    weights = {(link, way, "weights") for link in ("client-edge", "edge-cloud") for way in ("up", "down")}
    assert kinds(tiny.Federation(plan(intervals=(1, 2))).run(3)) == up | weights


def test_messages_are_of_classes_not_of_samples() -> None:
    """Ids, counts, means, stds: a tensor's first axis has a row per class, whatever the samples."""
    sizes = []
    for count in (6, 60):
        federation = tiny.Federation(plan(sizes=(count,) * 4, intervals=(None, None))).run(1)
        client = federation.party("client", 0)
        sent = client.moments()
        classes = sorted(set(federation.plan.train.labels[client.rows].tolist()))
        assert sent.classes.tolist() == classes
        assert sent.counts.sum() == count
        assert sent.means.shape == sent.stds.shape == (len(classes), 4, 4, 4)
        assert (sent.ranks, sent.factors) == (None, None)
        sizes.append((len(classes), sum(federation.traffic(1).values())))
    assert sizes[0] == sizes[1]


def test_moments_are_of_the_clean_features_of_all_samples() -> None:
    """By definition, in evaluation mode, with the batch of one that training leaves out."""
    federation = tiny.Federation(plan(model="batch", sizes=(9, 5, 6, 4), edge_norm="batch")).run(2)
    for client in (federation.party("client", i) for i in range(4)):
        model = tiny.cut_parts(federation.plan)["client"]
        model.load_state_dict(client.own)
        model.eval()
        inputs, labels = federation.plan.train.batch(client.rows, torch.float64, "cpu")
        features = model(inputs).detach()
        found = unpacked(client.moments())
        assert list(found) == sorted(set(labels.tolist()))
        for label, one in found.items():
            some = features[labels == label]
            assert one.count == len(some)
            assert torch.allclose(one.mean, some.mean(0), atol=1e-12)
            assert one.variance is not None
            assert torch.allclose(one.variance, some.var(0, correction=0), atol=1e-12)


def closed_form(federation: tiny.Federation, t: int) -> Counter[tuple[str, str, str]]:
    """4 J S bytes for each of mean and std (8 in float64), 8 J for ids and counts."""
    wanted: Counter[tuple[str, str, str]] = Counter()
    sizes = tiny.cut_elements(federation.plan)
    labels = federation.plan.train.labels
    held = [set(labels[rows].tolist()) for rows in federation.plan.client_rows]
    for i in federation.algorithm.sample(t).ids:
        wanted["client-edge", "up", "moments"] += 2 * 8 * len(held[i]) * sizes["client"]
        wanted["client-edge", "up", "counts"] += 8 * len(held[i])
    for edge in range(2):
        mine = set().union(*(held[i] for i in federation.algorithm.sample(t).ids if EDGES[i] == edge))
        wanted["edge-cloud", "up", "moments"] += 2 * 8 * len(mine) * sizes["edge"]
        wanted["edge-cloud", "up", "counts"] += 8 * len(mine)
    return +wanted


def test_ledger() -> None:
    """Moments and counts every round, weights on schedule; all take part."""
    federation = tiny.Federation(plan(intervals=(2, 3)))
    for t in range(1, 7):
        wanted = closed_form(federation, t) + tiny.weights_of_three_tiers(federation.plan, t)
        assert federation.run(1).traffic(t) == wanted, t


@pytest.mark.parametrize("order", ["before", "after"])
def test_averages_reach_who_takes_part_next(order: str) -> None:
    """Averaged are the clients of the rounds since the last time; who was there when it was made (``before``)
    has it, others pay for it when they come; nobody pays twice."""
    federation = tiny.Federation(plan(intervals=(3, None), participation=0.5, avg_order=order))
    part = tiny.part_bytes(federation.plan)["client"]
    stale = set(range(4))
    for t in range(1, 13):
        now = set(federation.algorithm.sample(t).ids)
        downloads = len(now & stale)
        stale -= now
        recent = set().union(*(federation.algorithm.sample(s).ids for s in range(t - 2, t + 1) if s > 0))
        if t % 3 == 0:
            stale = set(range(4))
            if order == "before":
                downloads += len(now)
                stale -= now
        before = {i: dict(federation.party("client", i).own) for i in range(4)}
        traffic = federation.run(1).traffic(t)
        assert traffic.get(("client-edge", "down", "weights"), 0) == downloads * part, t
        assert traffic.get(("client-edge", "up", "weights"), 0) == (t % 3 == 0) * len(recent) * part
        idle = set(range(4)) - now
        assert all(identical(before[i], federation.party("client", i).own) for i in idle)


def test_an_average_is_of_those_that_took_part_by_samples() -> None:
    """Within an edge after I_c rounds, then over edges after I_e."""
    found = {}
    for scope in ("edge", "hierarchical"):
        apart = tiny.Federation(plan(intervals=(2, 2), client_avg_scope=scope)).run(1)
        alone = tiny.Federation(plan(intervals=(None, None))).run(2)
        apart.run(1)
        found[scope] = apart, alone
    apart, alone = found["edge"]
    own = [alone.party("client", i).own for i in range(4)]
    within = [tiny.average(own[:2], tiny.SIZES[:2]), tiny.average(own[2:], tiny.SIZES[2:])]
    for i in range(4):
        assert difference(apart.party("client", i).own, within[EDGES[i]]) < 1e-12
    everywhere = tiny.average(within, [sum(tiny.SIZES[:2]), sum(tiny.SIZES[2:])])
    together = found["hierarchical"][0]
    for i in range(4):
        assert difference(together.party("client", i).own, everywhere) < 1e-12
    assert difference({k: v for k, v in together.weights().items() if k in everywhere}, everywhere) < 1e-12


def test_edges_weigh_by_those_who_took_part() -> None:
    """By their samples, as often as they did since the last time."""
    federation = tiny.Federation(plan(intervals=(None, 2), participation=0.5)).run(2)
    alone = tiny.Federation(plan(intervals=(None, None), participation=0.5)).run(2)
    took_part = [i for t in (1, 2) for i in federation.algorithm.sample(t).ids]
    assert sorted(took_part) == [0, 0, 2, 3]
    own = [alone.party("edge", e).own for e in range(2)]
    mean = tiny.average(own, [sum(tiny.SIZES[i] for i in took_part if EDGES[i] == e) for e in range(2)])
    assert difference(federation.party("edge", 0).own, mean) < 1e-12
    assert identical(federation.party("edge", 0).own, federation.party("edge", 1).own)
    now = federation.run(1).algorithm.sample(3).ids
    for e in range(2):
        assert federation.party("edge", e).send().mass == sum(tiny.SIZES[i] for i in now if EDGES[i] == e)


def test_with_one_client_under_one_edge_averages_change_nothing() -> None:
    """Its optimiser goes on too."""
    found = [
        tiny.run(plan(sizes=(8,), edges=(0,), intervals=intervals), 3)
        for intervals in ((1, 1), (None, 1), (50, 50))
    ]
    own = {name.removeprefix("client0/"): value for name, value in found[1].items()}
    assert identical(found[0], own)
    fresh = tiny.run(plan(sizes=(8,), edges=(0,), intervals=(1, 1), reset_optimizer="per_round"), 3)
    assert difference(found[0], fresh) > 1e-6


def test_never_averaged_clients_know_nothing_of_each_other() -> None:
    """The other clients' data may be anything."""
    one = tiny.Federation(plan(intervals=(None, None))).run(2)
    changed = plan(intervals=(None, None))
    changed.train.inputs[changed.client_rows[3]] *= -3
    other = tiny.Federation(changed).run(2)
    assert all(identical(one.party("client", i).own, other.party("client", i).own) for i in range(3))
    assert difference(one.party("client", 3).own, other.party("client", 3).own) > 1e-6
    assert identical(one.party("edge", 0).own, other.party("edge", 0).own)
    assert difference(one.party("edge", 1).own, other.party("edge", 1).own) > 1e-6


def test_the_cloud_teaches_nobody() -> None:
    """Whatever its weights, clients and edges come to the same bits."""
    one, other = tiny.Federation(plan(intervals=(1, 1))), tiny.Federation(plan(intervals=(1, 1)))
    cloud = other.party("main")
    cloud.current = {name: value + 1 for name, value in cloud.current.items()}
    for federation in (one, other):
        federation.run(2)
    assert all(identical(one.party("client", i).own, other.party("client", i).own) for i in range(4))
    assert all(identical(one.party("edge", e).own, other.party("edge", e).own) for e in range(2))
    assert difference(one.party("main").current, other.party("main").current) > 0.1


def test_an_untrained_client_is_the_initial_one() -> None:
    """The control: moments of random features still go up."""
    federation = tiny.Federation(plan(local_epochs=0, intervals=(1, 1))).run(2)
    initial = tiny.state_of(tiny.cut_parts(federation.plan)["client"])
    assert identical(federation.party("client", 1).own, initial)
    assert ("client-edge", "up", "moments") in federation.traffic(2)


def test_few_samples_of_a_class_may_stay_at_home() -> None:
    federation = tiny.Federation(plan(min_count=3)).run(1)
    for i in range(4):
        client = federation.party("client", i)
        held = Counter(federation.plan.train.labels[client.rows].tolist())
        sent = client.moments()
        assert ([] if sent is None else sent.classes.tolist()) == sorted(c for c, n in held.items() if n >= 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"contrast": "infonce"}, {"contrast": "none"}, {"contrast_on": "flat"}, {"tau": 0.1}, {"views": 1},
        {"covariance": "low_rank"}, {"covariance": "mu_only"}, {"covariance": "full"}, {"pooling": "mixture"},
        {"pooling": "paper_eq5"}, {"edge_views": "spatial"}, {"clip_nonneg": True}, {"syn_per_class": 6},
        {"proto_space": "vector"}, {"proto_space": "grid", "grid": 2}, {"eps": 0.1}, {"min_count": 3},
        {"avg_order": "after"}, {"skip_one_class_batches": True}, {"syn_prior": "empirical"},
        {"intervals": (1, 5)}, {"weight_decay": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_is_another_method(option: dict[str, Any]) -> None:
    """In its last part at least, and nothing breaks."""
    base = {"intervals": (2, 2), "batch_size": 2}
    usual, found = (tiny.run(plan(**{**base, **more}), 2) for more in ({}, option))
    head = {name for name in usual if name.startswith("block3")}
    assert all(value.isfinite().all() for value in found.values())
    assert max((found[name] - usual[name]).abs().max().item() for name in head) > 1e-9


def test_a_tier_without_maps_or_vectors_is_refused() -> None:
    """Where two tensors leave a block there is nothing to take moments of."""
    with pytest.raises(UserError, match=r"one map or vector, block 'block2' puts out"):
        tiny.run(plan(model="pair", cut_layers=(1, 3)))


def test_vectors_need_no_maps() -> None:
    """A model of linear layers has vectors everywhere."""
    assert all(v.isfinite().all() for v in tiny.run(plan(model="mlp", proto_space="grid")).values())


def test_what_is_scored_meets_what_was_trained_on() -> None:
    """The whole model is client, edge and cloud one after the other, pooled between edge and cloud."""
    for space, first in (("map", (4, 4, 4)), ("grid", (4, 2, 2)), ("vector", (4, 1, 1))):
        made = plan(proto_space=space, grid=2)
        parts = tiny.cut_parts(made)
        inputs = made.train.batch(made.client_rows[0], torch.float64, "cpu")[0]
        features = parts["client"](inputs)
        assert features.shape[1:] == first
        outputs = parts["edge"](features)
        assert outputs.shape[1:] == (4, 1, 1)
        assert torch.equal(parts["main"](outputs), tiny.initial(made)(inputs))


def test_group_norm_in_the_edge_part_alone() -> None:
    for norm, wanted in (("group", [True, False]), ("batch", [True, True])):
        parts = tiny.cut_parts(plan(model="batch", edge_norm=norm))
        found = [any(isinstance(m, nn.BatchNorm2d) for m in parts[p].modules()) for p in ("client", "edge")]
        assert found == wanted


def test_known_classes_are_told_apart_as_well_as_can_be() -> None:
    """Gaussian classes and tiers that pass features on: the cloud nears the best possible accuracy,
    Phi(distance / 2) of two unit Gaussians, within 3 points at 1000 draws a class."""
    distance = 2.0
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    inputs = torch.randn(400, 6, generator=draw, dtype=torch.float64)
    inputs[:, 0] += distance * labels
    best = 0.5 * (1 + math.erf(distance / 2 / math.sqrt(2)))
    cloud = nn.Linear(6, 2).double()
    found = gaussians.fit([(inputs, labels)], "diag", 1)
    some = torch.cat([gaussians.draw([found[c]], 1000, draw, 0.0) for c in range(2)])
    targets = torch.arange(2).repeat_interleave(1000)
    optimizer = torch.optim.Adam(cloud.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(cloud(some), targets).backward()
        optimizer.step()
    fresh = torch.randn(4000, 6, generator=draw, dtype=torch.float64)
    truth = torch.arange(4000) % 2
    fresh[:, 0] += distance * truth
    assert (cloud(fresh).argmax(1) == truth).double().mean() > best - 0.03


def test_every_tier_stays_on_its_own() -> None:
    """Entries of the ledger are between neighbours only."""
    federation = tiny.Federation(plan(intervals=(1, 1))).run(2)
    links = {line.link for line, count in federation.fleet.ledger.bytes.items() if count}
    assert links <= {"client-edge", "edge-cloud"}
