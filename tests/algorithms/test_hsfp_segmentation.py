"""H-SFP on masks: what crosses between its tiers, who learns from whom, and that it finds lesions."""

from typing import Any

import lesions
import numpy as np
import pytest
import tiny
import torch
from tiny import difference, identical

from rayfl.algorithms.sfp import layouts, pixels
from rayfl.algorithms.sfp.messages import unpacked
from rayfl.metrics.segmentation import dice_by_image
from rayfl.tasks import MaskScore, join

LAYOUTS = (
    {"client_actors": 2, "placement": "colocated"},
    {"client_actors": 4, "placement": "separate"},
    {"clients_per_actor": 1, "placement": "separate"},
)


def score(federation: tiny.Federation) -> MaskScore:
    """The global model on the test images."""
    with federation.fleet.phase("evaluation"):
        parts = federation.algorithm.global_model(federation.t)
        scores = federation.fleet.gather(federation.fleet.group("evaluator").score(*parts))
    federation.fleet.settle()
    return join([test for test, _ in scores.values()])


def dice(federation: tiny.Federation) -> float:
    """Its mean."""
    return float(dice_by_image(score(federation)).mean())


def test_ledger() -> None:
    """Of moments and layouts 2 J C 8-byte numbers and 12 of 4 bytes; of counts 8 J and 16 bytes; weights and
    their masses on schedule; nothing else."""
    federation = tiny.Federation(lesions.plan(intervals=(2, 3))).run(6)
    for t in range(1, 7):
        wanted = tiny.weights_of_three_tiers(federation.plan, t)
        for link, senders, channels in (("client-edge", 4, 4), ("edge-cloud", 2, 6)):
            wanted[link, "up", "moments"] += senders * (2 * 2 * channels * 8 + 12 * 4)
            wanted[link, "up", "counts"] += senders * (8 * 2 + 16)
        assert federation.traffic(t) == wanted, t


def test_a_client_describes_its_clean_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own part in evaluation mode, whatever the batches."""
    federation = tiny.Federation(lesions.plan()).run(1)
    monkeypatch.setattr("rayfl.evaluation.MOST_VALUES", 3 * 2 * 16 * 24)
    client = federation.party("client", 2)
    model = tiny.cut_parts(federation.plan)["client"]
    model.load_state_dict(client.own)
    inputs, masks = federation.plan.train.batch(client.rows, torch.float64, "cpu")
    sent, maps = client.moments(), model.eval()(inputs).detach()
    features, labels = pixels.by_position(maps, pixels.shrink(masks, (8, 12)))
    for label, one in unpacked(sent.moments).items():
        assert one.count == (labels == label).sum()
        assert torch.allclose(one.mean, features[labels == label].mean(0), atol=1e-12)
    wanted = layouts.take([masks])
    assert (sent.layouts.lesions, sent.layouts.empty) == (wanted.lesions, wanted.empty)
    assert torch.equal(sent.layouts.mean, wanted.mean)


def test_an_edge_passes_on_what_it_was_told_of_lesions() -> None:
    """Counts and layouts at the cloud are those of the clients, however few maps were drawn."""
    federation = tiny.Federation(lesions.plan(syn_per_class=3)).run(1)
    for e, mine in ((0, (0, 1)), (1, (2, 3))):
        told = {i: federation.party("client", i).moments() for i in mine}
        edge = federation.party("edge", e)
        edge.train_round(told, 2)
        sent = edge.moments()
        assert sent.moments.means.shape == (2, 6)
        assert torch.equal(sent.moments.counts, sum(one.moments.counts for one in told.values()))
        wanted = layouts.join(told[i].layouts for i in mine)
        assert torch.equal(sent.layouts.mean, wanted.mean)
        assert (sent.layouts.lesions, sent.layouts.empty) == (wanted.lesions, wanted.empty)
        assert edge.moments() is None


def test_the_cloud_teaches_nobody() -> None:
    """Whatever its weights, clients and edges come to the same bits."""
    one, other = (tiny.Federation(lesions.plan(intervals=(1, 1))) for _ in range(2))
    cloud = other.party("main")
    cloud.current = {name: value + 1 for name, value in cloud.current.items()}
    before = dict(one.party("client", 0).own), dict(one.party("edge", 0).own)
    for federation in (one, other):
        federation.run(2)
    assert all(identical(one.party("client", i).own, other.party("client", i).own) for i in range(4))
    assert all(identical(one.party("edge", e).own, other.party("edge", e).own) for e in range(2))
    assert difference(one.party("main").current, other.party("main").current) > 0.1
    assert difference(before[0], one.party("client", 0).own) > 1e-3
    assert difference(before[1], one.party("edge", 0).own) > 1e-3


def test_only_moments_and_layouts_reach_an_edge() -> None:
    """Two federations whose edge 0 is told the same go on alike there, whatever other clients hold."""
    one = tiny.Federation(lesions.plan(intervals=(None, None))).run(2)
    changed = lesions.plan(intervals=(None, None))
    changed.train.inputs[changed.client_rows[3]] *= -3  # type: ignore[attr-defined]
    other = tiny.Federation(changed).run(2)
    assert identical(one.party("edge", 0).own, other.party("edge", 0).own)
    assert difference(one.party("edge", 1).own, other.party("edge", 1).own) > 1e-6
    assert difference(one.party("main").current, other.party("main").current) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sealed_is_local(layout: dict[str, Any]) -> None:
    """Hosts that only exchange serialised copies give the same weights, bytes and scores."""
    plan = lesions.plan(intervals=(1, 2), participation=0.7, pooling="mixture")
    here = tiny.Federation(plan).run(3)
    there = tiny.Federation(plan, tiny.sealed(plan, **layout)).run(3)
    assert identical(here.weights(), there.weights())
    assert +here.fleet.ledger.bytes == +there.fleet.ledger.bytes
    assert str(score(here)) == str(score(there))


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"pooling": "mixture"}, {"pooling": "paper_eq5"}, {"covariance": "mu_only"}, {"clip_nonneg": True},
        {"eps": 0.1}, {"tau": 0.1}, {"views": 1}, {"syn_per_class": 9}, {"avg_order": "after"},
        {"min_count": 4}, {"edge_epochs": 2},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_is_another_method(option: dict[str, Any]) -> None:
    """In its last part at least, and nothing breaks."""
    usual = tiny.run(lesions.plan(intervals=(2, 2)), 2)
    found = tiny.run(lesions.plan(**{"intervals": (2, 2), **option}), 2)
    head = [name for name in usual if name.startswith("third")]
    assert all(value.isfinite().all() for value in found.values())
    assert max((found[name] - usual[name]).abs().max().item() for name in head) > 1e-9


def test_places_without_lesions() -> None:
    """One client without any, or nobody with one: a round goes on and all stays finite."""
    for clients in ((1,), (0, 1, 2, 3)):
        plan = lesions.plan(intervals=(1, 1))
        for i in clients:
            plan.train.masks[plan.client_rows[i]] = 0  # type: ignore[attr-defined]
        federation = tiny.Federation(plan).run(2)
        assert all(value.isfinite().all() for value in federation.weights().values())
        sent = federation.party("client", 1).moments()
        assert (sent.layouts.lesions, sent.moments.classes.tolist()) == (0, [0])


def test_masks_of_two_classes_are_lesion_and_background() -> None:
    """A model with an output for each learns from the same messages."""
    one, two = (tiny.Federation(lesions.plan(num_classes=k)).run(1) for k in (1, 2))
    assert one.traffic(1).keys() == two.traffic(1).keys()
    assert np.isfinite(score(two).loss)


@pytest.mark.slow
def test_lesions_are_found() -> None:
    """Better than by any one mask for all images, such as where lesions mostly are."""
    epochs = {"local_epochs": 3, "edge_epochs": 3, "cloud_epochs": 3}
    plan = lesions.plan(lr=0.02, tau=0.1, syn_per_class=32, intervals=(1, 1), **epochs)
    federation = tiny.Federation(plan)
    start = dice(federation)
    after = dice(federation.run(9))
    masks = federation.plan.test.masks  # type: ignore[attr-defined]
    assert after > max(of_one_mask(masks, share) for share in (0.2, 0.3, 0.4, 0.5, 0.6)) + 0.1
    assert after > start + 0.1


def of_one_mask(masks: torch.Tensor, share: float) -> float:
    """Mean Dice of one mask for all: where at least this share of the images with a lesion have it."""
    some = masks[(masks == 1).flatten(1).any(1)].double()
    guess = (some.mean(0) >= share).expand(len(masks), *masks.shape[1:])
    sizes = [(guess & (masks == 1)), guess, masks == 1]
    overlap, predicted, actual = (part.sum((1, 2))[:, None] for part in sizes)
    score = MaskScore(loss=0.0, overlaps=overlap, predicted=predicted, actual=actual)
    return float(dice_by_image(score).mean())


@pytest.mark.slow
def test_resumed_is_never_stopped() -> None:
    """Parties that take up a stored state come to the same bits; a client that comes later gets the average
    that its edge has kept."""
    plan = lesions.plan(intervals=(2, 2), participation=0.5)
    whole = tiny.Federation(plan).run(4)
    half = tiny.Federation(plan).run(2)
    resumed = tiny.Federation(plan)
    for role, count in (("client", 4), ("edge", 2), ("main", 1), ("fed", 1)):
        for i in range(count):
            resumed.party(role, i).load_state_dict(half.party(role, i).state_dict())
    resumed.t = 2
    assert identical(resumed.run(2).weights(), whole.weights())
