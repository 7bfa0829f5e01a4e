"""H-SFP on masks as its authors' code has it: labels of images below, real features in the cloud."""

import dataclasses
from typing import Any

import lesions
import numpy as np
import pytest
import tiny
import torch
from tiny import difference, identical
from torch import Tensor

from rayfl.algorithms.sfp.image_labels import decoder_loss, image_labels
from rayfl.algorithms.sfp.messages import unpacked
from rayfl.algorithms.sfp.synthesis import shuffled
from rayfl.errors import UserError
from rayfl.host import Blueprint
from rayfl.seeding import generator
from rayfl.tasks import Segmentation


def plan(**config: Any) -> Blueprint:
    """Four clients under two edges; a decoder that steps without momentum."""
    return lesions.plan(**{"seg_mode": "repo_image_label", "optimizer": "sgd", **config})


def test_more_than_a_tenth_is_a_lesion() -> None:
    masks = torch.zeros(4, 10, 10, dtype=torch.uint8)
    masks[1, 0], masks[2, 0] = 1, 1
    masks[2, 1, 0] = 1
    masks[3] = 255
    assert image_labels(masks).tolist() == [0, 0, 1, 0]


def test_the_decoders_loss_by_hand() -> None:
    """Per pixel -(1 - p)^2 log p of what is true, plus one minus soft Dice, for one output and for two."""
    draw = torch.Generator().manual_seed(0)
    for outputs in (1, 2):
        logits = torch.randn(3, outputs, 4, 5, generator=draw, dtype=torch.float64)
        masks = torch.randint(2, (3, 4, 5), generator=draw).to(torch.uint8)
        wanted = []
        for some, mask in zip(logits, masks, strict=True):
            lesion = some[0].sigmoid() if outputs == 1 else some.softmax(0)[1]
            right = torch.where(mask == 1, lesion, 1 - lesion)
            focal = (-((1 - right) ** 2) * right.log()).mean()
            shares, truths = [lesion], [mask == 1]
            if outputs == 2:
                shares, truths = [1 - lesion, lesion], [mask == 0, mask == 1]
            dice = [
                (2 * (p * m).sum() + 1) / (p.sum() + m.sum() + 1) for p, m in zip(shares, truths, strict=True)
            ]
            wanted.append(focal + 1 - sum(dice) / len(dice))
        assert decoder_loss(logits, masks, "mean").item() == pytest.approx(sum(wanted).item() / 3, abs=1e-12)
        assert decoder_loss(logits, masks, "sum").item() == pytest.approx(sum(wanted).item(), abs=1e-12)


def test_ledger() -> None:
    """Means and stds of [4, 8, 12] maps of the labels that a client has go to its edge, as in classification;
    then, of every sample, its map of 8-byte numbers and its mask to the edge and on; weights on schedule."""
    made = plan(intervals=(2, 3))
    made.train.masks[made.client_rows[1]] = 0  # type: ignore[attr-defined]
    federation, held = tiny.Federation(made).run(6), (2, 1, 2, 2)
    for t in range(1, 7):
        wanted = tiny.weights_of_three_tiers(federation.plan, t)
        wanted["client-edge", "up", "moments"] += sum(held) * 2 * 4 * 8 * 12 * 8
        wanted["client-edge", "up", "counts"] += sum(held) * 8
        for link, values in (("client-edge", 4 * 8 * 12), ("edge-cloud", 6 * 4 * 6)):
            wanted[link, "up", "activation"] += sum(lesions.SIZES) * values * 8
            wanted[link, "up", "label"] += sum(lesions.SIZES) * 16 * 24
        assert federation.traffic(t) == wanted, t


def test_moments_are_of_images() -> None:
    federation = tiny.Federation(plan()).run(1)
    client = federation.party("client", 2)
    model = tiny.cut_parts(federation.plan)["client"]
    model.load_state_dict(client.own)
    inputs, masks = federation.plan.train.batch(client.rows, torch.float64, "cpu")
    maps, labels = model.eval()(inputs).detach(), image_labels(masks)
    found = unpacked(client.moments())
    assert list(found) == labels.unique().tolist() == [0, 1]
    for label, one in found.items():
        assert one.count == (labels == label).sum()
        assert torch.allclose(one.mean, maps[labels == label].mean(0), atol=1e-12)


def test_the_cloud_trains_on_what_clients_and_edges_make_of_real_images() -> None:
    """By plain steps on all participants' features in order of ids, by the parts as the round leaves them."""
    federation = tiny.Federation(plan(intervals=(1, 1), cloud_epochs=2)).run(1)
    parts = tiny.cut_parts(federation.plan)
    features, masks = [], []
    for i in range(4):
        parts["client"].load_state_dict(federation.party("client", i).own)
        parts["edge"].load_state_dict(federation.party("edge", lesions.EDGES[i]).own)
        inputs, mask = federation.plan.train.batch(federation.plan.client_rows[i], torch.float64, "cpu")
        features.append(parts["edge"](parts["client"](inputs)).detach())
        masks.append(mask)
    some, truth, main = torch.cat(features), torch.cat(masks), parts["main"]
    optimizer = tiny.optimizer_for(federation.plan, main)
    order = generator(federation.plan.facts.seed, "cloud order", 1)
    for rows in shuffled(len(truth), federation.plan.config.batch_size, 2, order):
        optimizer.zero_grad()
        Segmentation().loss(main(some[rows]), truth[rows], "mean", 2.0).backward()
        optimizer.step()
    assert difference(federation.party("main").current, tiny.state_of(main)) < 1e-12


def test_the_tiers_below_learn_from_labels_of_images() -> None:
    """A mask that lies elsewhere in its image, or is larger, is nothing to them; one that is gone is."""
    usual = tiny.Federation(plan(intervals=(None, None))).run(2)
    found = []
    for change in (lambda masks: masks.flip(1), lambda masks: torch.zeros_like(masks)):
        changed = plan(intervals=(None, None))
        masks: Tensor = changed.train.masks  # type: ignore[attr-defined]
        masks.copy_(change(masks))
        found.append(tiny.Federation(changed).run(2))
    moved, gone = found
    for role, index in (("client", 0), ("client", 3), ("edge", 1)):
        own = usual.party(role, index).own
        assert identical(own, moved.party(role, index).own)
        assert difference(own, gone.party(role, index).own) > 1e-6
    assert difference(usual.party("main").current, moved.party("main").current) > 1e-6


def test_the_cloud_teaches_nobody() -> None:
    """Whatever its weights, clients and edges come to the same bits."""
    one, other = (tiny.Federation(plan(intervals=(1, 1))) for _ in range(2))
    cloud = other.party("main")
    cloud.current = {name: value + 1 for name, value in cloud.current.items()}
    for federation in (one, other):
        federation.run(2)
    for role, index in (("client", 0), ("client", 2), ("edge", 1)):
        assert identical(one.party(role, index).own, other.party(role, index).own)
    assert difference(one.party("main").current, other.party("main").current) > 0.1


def test_a_client_without_images_has_nothing_to_send() -> None:
    made = plan(intervals=(1, 1))
    rows = (*made.client_rows[:3], np.zeros(0, dtype=np.int64))
    federation = tiny.Federation(dataclasses.replace(made, client_rows=rows)).run(1)
    assert federation.party("client", 3).features() is None
    assert all(value.isfinite().all() for value in federation.weights().values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"contrast": "none"}, {"contrast": "infonce"}, {"proto_space": "grid"}, {"covariance": "low_rank"},
        {"edge_views": "spatial"}, {"pooling": "mixture"}, {"contrast_on": "flat"}, {"min_count": 3},
        {"loss_reduction": "sum"}, {"seg_mode": "pixel_moments"},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_is_another_method(option: dict[str, Any]) -> None:
    """In its last part at least, and nothing breaks."""
    usual = tiny.run(plan(intervals=(2, 2)), 2)
    found = tiny.run(plan(**{"intervals": (2, 2), **option}), 2)
    head = [name for name in usual if name.startswith("third")]
    assert all(value.isfinite().all() for value in found.values())
    assert max((found[name] - usual[name]).abs().max().item() for name in head) > 1e-9


@pytest.mark.slow
def test_sealed_is_local() -> None:
    """Hosts that only exchange serialised copies give the same weights and bytes."""
    made = plan(intervals=(1, 2), participation=0.7)
    here = tiny.Federation(made).run(3)
    there = tiny.Federation(made, tiny.sealed(made, client_actors=2, placement="separate")).run(3)
    assert identical(here.weights(), there.weights())
    assert +here.fleet.ledger.bytes == +there.fleet.ledger.bytes


def test_it_is_for_masks() -> None:
    with pytest.raises(UserError, match=r"seg_mode=repo_image_label is for masks, got .* output is \(3,\)"):
        tiny.run(tiny.blueprint("hsfp", model="group", seg_mode="repo_image_label"))
    with pytest.raises(UserError, match="one lesion on a background, got a model of 3 classes"):
        tiny.run(lesions.plan(num_classes=3, seg_mode="repo_image_label"))
