"""Prototypes of masks (H-SFP for segmentation): what is sent, and what is drawn from it."""

import dataclasses
import itertools
import math
from typing import Any

import lesions
import pytest
import tiny
import torch
from torch import Tensor

from rayfl.algorithms.sfp import layouts, pixels
from rayfl.algorithms.sfp.contrast import supcon
from rayfl.algorithms.sfp.gaussians import Gaussian
from rayfl.algorithms.sfp.layouts import Layouts
from rayfl.algorithms.sfp.masks import MaskPrototypes, Sources
from rayfl.algorithms.sfp.messages import MaskMoments, packed, unpacked
from rayfl.algorithms.sfp.prototypes import prototypes
from rayfl.algorithms.sfp.spaces import Border
from rayfl.errors import UserError
from rayfl.host import Host
from rayfl.messages import weigh
from rayfl.seeding import generator

MAPS, SMALLER = (8, 12), (4, 6)


def of(part: str, **config: Any) -> MaskPrototypes:
    """Those of a party of a small federation."""
    found = prototypes(Host(lesions.plan(**config)), part)
    assert isinstance(found, MaskPrototypes)
    return found


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rng(seed))


def spread(label: int, count: int = 10, at: float = 0.0, variance: float = 0.0) -> Gaussian:
    """Of four channels around ``at`` + 10 * class."""
    centre = torch.full((4,), at + 10.0 * label, dtype=torch.float64)
    return Gaussian(count, centre, torch.full_like(centre, variance))


def message(*parts: tuple[int, Gaussian], seed: int = 1, images: int = 8) -> MaskMoments:
    """With layouts of some masks."""
    moments = packed(dict(parts))
    assert moments is not None
    return MaskMoments(moments, layouts.take([lesions.masks(images, seed)]))


def test_the_task_chooses() -> None:
    """And the same few methods are all that a party calls."""
    assert type(prototypes(Host(lesions.plan()), "client")) is MaskPrototypes
    assert type(prototypes(Host(tiny.blueprint("hsfp")), "client")) is not MaskPrototypes


def test_a_client_describes_positions_and_lesions() -> None:
    """Of all batches: population moments of channels by class of position, in loops, and the layouts."""
    maps, masks = normal(5, 4, *MAPS), lesions.masks(5, 3)
    by_class: dict[int, list[Tensor]] = {0: [], 1: []}
    for i in range(5):
        for row, column in itertools.product(range(8), range(12)):
            area = masks[i, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].sum().item()
            by_class[int(area >= 2)].append(maps[i, :, row, column])
    sent = of("client").describe([(maps[:3], masks[:3]), (maps[3:], masks[3:])])
    assert sent is not None
    found = unpacked(sent.moments)
    assert list(found) == [0, 1]
    for label, some in by_class.items():
        rows = torch.stack(some)
        assert found[label].count == len(rows)
        assert torch.allclose(found[label].mean, rows.mean(0), atol=1e-12)
        variance = found[label].variance
        assert variance is not None
        assert torch.allclose(variance, rows.var(0, correction=0), atol=1e-12)
    whole = layouts.take([masks])
    assert (sent.layouts.lesions, sent.layouts.empty) == (whole.lesions, whole.empty) == (4, 1)
    assert torch.allclose(sent.layouts.mean, whole.mean, atol=1e-6)


def test_a_message_weighs_its_numbers() -> None:
    """2 J C floats and 12; J ids, J counts and 2 counts of images: nothing grows with images or positions."""
    for images in (4, 40):
        maps, masks = normal(images, 4, *MAPS), lesions.masks(images, 3)
        sent = of("client").describe([(maps.float(), masks)])
        assert weigh(sent) == {"moments": 4 * (2 * 2 * 4 + 12), "counts": 4 * 2 * 2 + 8 * 2}
    alone = of("client", covariance="mu_only").describe([(maps.float(), masks)])
    assert weigh(alone)["moments"] == 4 * (2 * 4 + 12)


def test_few_lesions_stay_at_home() -> None:
    """Also where their positions are many: the mean ellipse of one image is its lesion's."""
    maps, masks = normal(3, 4, *MAPS), lesions.masks(3, 3)
    masks[1:] = 0
    batches = [(maps, masks)]
    told = of("client").describe(batches)
    held = of("client", min_count=2).describe(batches)
    assert told is not None
    assert held is not None
    assert (told.layouts.lesions, told.layouts.empty, len(told.layouts.mean)) == (1, 2, 6)
    assert (held.layouts.lesions, held.layouts.empty, len(held.layouts.mean)) == (0, 2, 0)
    assert held.moments.classes.tolist() == [0, 1]
    lesion = int(held.moments.counts[1])
    fewer = of("client", min_count=lesion + 1).describe(batches)
    assert fewer is not None
    assert fewer.moments.classes.tolist() == [0]
    assert of("client", min_count=1000).describe(batches) is None


def test_places_are_pooled() -> None:
    """The union's moments, counts and layouts; or plain means of moments; nobody sent anything: nothing."""
    sent = {
        5: message((0, spread(0, 30)), (1, spread(1, 10)), seed=1),
        2: message((0, spread(0, 10, at=4.0)), seed=2),
        7: None,
    }
    found = of("edge").sources(sent)
    assert found is not None
    assert found.counts == {0: 40, 1: 10}
    (union,) = found.places
    assert torch.allclose(union[0].mean, torch.ones(4, dtype=torch.float64))
    assert union[0].variance is not None
    assert torch.allclose(union[0].variance, torch.full((4,), 3.0, dtype=torch.float64))
    assert (found.layouts.lesions, found.layouts.empty) == (12, 4)
    plain = of("edge", pooling="paper_eq5").sources(sent)
    assert plain is not None
    assert plain.counts == found.counts
    assert torch.allclose(plain.places[0][0].mean, torch.full((4,), 2.0, dtype=torch.float64))
    assert of("edge").sources({1: None}) is None


def test_a_mixture_is_of_places() -> None:
    """By ascending id; one without lesions has those of the others."""
    sent = {5: message((0, spread(0)), (1, spread(1))), 2: message((0, spread(0, at=4.0)))}
    found = of("edge", pooling="mixture").sources(sent)
    assert found is not None
    assert [place[0].mean[0].item() for place in found.places] == [4.0, 0.0]
    assert [place[1].mean[0].item() for place in found.places] == [10.0, 10.0]
    assert found.counts == {0: 20, 1: 10}
    assert found.sizes == [10, 20], "a borrowed class makes no place larger"


def sources(*places: dict[int, Gaussian]) -> Sources:
    """With layouts of some masks."""
    sizes = [sum(one.count for one in place.values()) for place in places]
    return Sources(layouts.take([lesions.masks(40, 1)]), {0: 10, 1: 10}, places, sizes)


@pytest.mark.parametrize(("part", "size"), [("edge", MAPS), ("main", SMALLER)])
def test_maps_are_drawn_for_masks(part: str, size: tuple[int, int]) -> None:
    """As large as the tier below puts them out; without variance each position has its class's mean; two
    views are of the same masks, one after the other."""
    found = sources({0: spread(0), 1: spread(1)})
    maps, masks = of(part, eps=0.0, syn_per_class=5).draw(found, 2, rng())
    assert (maps.shape, masks.shape, masks.dtype) == ((10, 4, *size), (10, *lesions.IMAGE), torch.uint8)
    assert maps.dtype == torch.float64
    assert torch.equal(masks[:5], masks[5:])
    assert 0 < masks.sum() < masks.numel()
    assert torch.equal(maps, 10.0 * pixels.shrink(masks, size)[:, None].expand_as(maps))


def test_what_is_drawn_is_like_what_was_sent() -> None:
    """Mean and variance by class, eps included; two views differ; draws repeat by their generator."""
    found = sources({0: spread(0, variance=0.75), 1: spread(1, variance=3.75)})
    drawing = of("edge", syn_per_class=300, eps=0.25)
    maps, masks = drawing.draw(found, 2, rng())
    features, labels = pixels.by_position(maps, pixels.shrink(masks, MAPS))
    for label, deviation in ((0, 1.0), (1, 2.0)):
        some = features[labels == label]
        assert some.mean().item() == pytest.approx(10.0 * label, abs=0.1)
        assert some.std().item() == pytest.approx(deviation, rel=0.05)
    assert not torch.equal(maps[:300], maps[300:])
    assert torch.equal(drawing.draw(found, 2, rng())[0], maps)
    assert not torch.equal(drawing.draw(found, 2, rng(1))[0], maps)


def test_other_draws() -> None:
    """Clipped at 0; where no variance is sent, with the one that is drawn with then."""
    wide = sources({0: spread(0, variance=1.0), 1: spread(1, variance=1.0)})
    assert of("edge").draw(wide, 1, rng())[0].min() < 0
    assert of("edge", clip_nonneg=True).draw(wide, 1, rng())[0].min() == 0
    points = sources({c: dataclasses.replace(spread(c), variance=None) for c in (0, 1)})
    maps, masks = of("edge", covariance="mu_only", eps=0.0, syn_per_class=100).draw(points, 1, rng())
    apart = maps - 10.0 * pixels.shrink(masks, MAPS)[:, None]
    assert apart.std().item() == pytest.approx(0.01, rel=0.05)


def test_a_map_of_a_mixture_is_of_one_place() -> None:
    """Of its background and its lesion alike; places in proportion to their positions."""
    found = sources(
        {0: spread(0, 20, at=1.0), 1: spread(1, 10, at=1.0)},
        {0: spread(0, 80, at=2.0), 1: spread(1, 10, at=2.0)},
    )
    maps, masks = of("edge", eps=0.0, syn_per_class=300).draw(found, 1, rng())
    place = maps - 10.0 * pixels.shrink(masks, MAPS)[:, None]
    assert torch.equal(place, place[:, :1, :1, :1].expand_as(place))
    assert set(place[:, 0, 0, 0].tolist()) == {1.0, 2.0}
    assert (place[:, 0, 0, 0] == 1.0).double().mean().item() == pytest.approx(0.25, abs=0.075)


def test_without_lesions_masks_are_empty() -> None:
    known = Sources(Layouts(0, 9, torch.empty(0), torch.empty(0)), {0: 5}, [{0: spread(0)}], [5])
    maps, masks = of("main", eps=0.0).draw(known, 1, rng())
    assert not masks.any()
    assert not maps.any()


def test_an_edge_passes_real_counts_and_layouts_on() -> None:
    """Whatever was drawn; but no class that nobody sent."""
    found = sources({0: spread(0), 1: spread(1)})
    maps, masks = normal(6, 6, *SMALLER), lesions.masks(6, 1)
    sent = of("edge").pass_on([(maps, masks)], found)
    assert sent is not None
    assert sent.layouts is found.layouts
    assert (sent.moments.classes.tolist(), sent.moments.counts.tolist()) == ([0, 1], [10, 10])
    wanted = torch.stack([maps.movedim(1, -1)[pixels.shrink(masks, SMALLER) == c].mean(0) for c in (0, 1)])
    assert torch.allclose(sent.moments.means, wanted, atol=1e-12)
    unseen = of("edge").pass_on([(maps, masks)], dataclasses.replace(found, counts={0: 7}))
    assert unseen is not None
    assert (unseen.moments.classes.tolist(), unseen.moments.counts.tolist()) == ([0], [7])


@pytest.mark.parametrize(("part", "cells"), [("client", (8, 8)), ("edge", MAPS)])
def test_contrast_of_positions(part: str, cells: tuple[int, int]) -> None:
    """SupCon of 256 positions at most, balanced, of 8x8 cells of a client's maps and all of an edge's; the
    choice is by round, party and step."""
    maps, masks = normal(6, 4, *MAPS).requires_grad_(), lesions.masks(6, 1)
    objective = of(part, tau=0.3).objective(0.1, 2, 5)
    found = [objective.loss(maps, masks) for _ in range(2)]
    again = of(part, tau=0.3).objective(0.1, 2, 5).loss(maps, masks)
    positions = pixels.by_position(
        maps if cells == MAPS else pixels.pool(maps, cells), pixels.shrink(masks, cells)
    )
    for step, loss in enumerate(found, 1):
        some, labels = pixels.balanced(*positions, generator(3, "positions", 2, 5, step))
        wanted = supcon(torch.nn.functional.normalize(some, dim=1), labels, 0.3)
        assert loss is not None
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    assert found[0] is not None
    assert again is not None
    assert again.item() == found[0].item() != found[1].item()  # type: ignore[union-attr]
    found[0].backward()  # type: ignore[no-untyped-call]
    assert maps.grad is not None
    assert maps.grad.abs().sum() > 0


def test_contrast_is_not_in_bfloat16() -> None:
    """Whose maps are taken to float32 first."""
    maps, masks = normal(4, 4, *MAPS).bfloat16(), lesions.masks(4, 1)
    loss = of("client").objective(0.1, 1, 0).loss(maps, masks)
    wanted = of("client").objective(0.1, 1, 0).loss(maps.float(), masks)
    assert loss is not None
    assert wanted is not None
    assert loss.dtype == torch.float32
    assert loss.item() == wanted.item()


def test_batches_of_one_class() -> None:
    """No step where none is wanted; else all pull together, and the loss is the log of the others' number."""
    maps, masks = (
        (normal(2, 4, *MAPS) * 0 + 1).requires_grad_(),
        torch.zeros(2, *lesions.IMAGE, dtype=torch.uint8),
    )
    loss = of("client").objective(0.1, 1, 0).loss(maps, masks)
    assert loss.item() == pytest.approx(math.log(2 * 64 - 1))
    assert not of("client", skip_one_class_batches=True).objective(0.1, 1, 0).loss(maps, masks).requires_grad


def test_borders_know_their_sizes() -> None:
    """Of maps and of images, on a model whose outputs are as before."""
    parts = tiny.cut_parts(lesions.plan())
    borders = [parts[part][-1] for part in ("client", "edge")]
    assert all(isinstance(border, Border) for border in borders)
    assert [(border.size, border.image) for border in borders] == [
        (MAPS, lesions.IMAGE),
        (SMALLER, lesions.IMAGE),
    ]
    inputs = normal(2, 2, *lesions.IMAGE)
    plain = lesions.build().double().eval()
    assert torch.equal(tiny.initial(lesions.plan()).eval()(inputs), plain(inputs))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("covariance", "low_rank"), ("proto_space", "grid"), ("proto_space", "vector"),
        ("contrast", "infonce"), ("contrast", "none"), ("contrast_on", "flat"), ("edge_views", "spatial"),
        ("syn_prior", "empirical"),
    ],
)  # fmt: skip
def test_options_without_meaning_for_positions_are_refused(option: str, value: str) -> None:
    """Before anything starts."""
    with pytest.raises(UserError, match=rf"segmentation takes algorithm\.{option}=.*, got {value}"):
        lesions.plan(**{option: value}).model()


def test_lesions_of_several_kinds_are_refused() -> None:
    """Two classes are background and lesion."""
    lesions.plan(num_classes=2).model()
    with pytest.raises(UserError, match="one lesion on a background, got a model of 3 classes"):
        lesions.plan(num_classes=3).model()
