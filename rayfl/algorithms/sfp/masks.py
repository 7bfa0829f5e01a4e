"""Prototypes where the task is segmentation: a position is of the class that the mask has there.

Two things go up: the moments of features by class over all positions of all images, and where lesions lie.
From these a tier draws masks, and to each the maps that a client or an edge might have made of its image.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rayfl.algorithms.sfp import layouts, pixels
from rayfl.algorithms.sfp.config import HSFPConfig
from rayfl.algorithms.sfp.gaussians import SPREAD_OF_POINTS, Gaussian, fit, pool
from rayfl.algorithms.sfp.layouts import Layouts
from rayfl.algorithms.sfp.messages import MaskMoments, packed, unpacked
from rayfl.algorithms.sfp.objective import PositionObjective
from rayfl.algorithms.sfp.spaces import Border
from rayfl.host import Batch, Host
from rayfl.moments import Moments
from rayfl.training import Rows

CELLS = 8
"""Per side of a client's maps, for its contrast."""


@dataclass(frozen=True)
class Sources:
    """What maps with masks are drawn from."""

    layouts: Layouts
    """Of all images."""
    counts: Mapping[int, int]
    """Real positions behind each class."""
    places: Sequence[Mapping[int, Gaussian]]
    """By class: of the union of all places, or (``mixture``) of each."""
    sizes: Sequence[int]
    """Real positions behind each of them, without what it has from the others."""


class MaskPrototypes:
    """A Gaussian of the features at the positions of each class, and one of the lesions' ellipses."""

    def __init__(self, host: Host, part: str) -> None:
        self.host, self.part = host, part
        self.config: HSFPConfig = host.config  # type: ignore[assignment]

    def objective(self, lr: float, t: int, index: int) -> PositionObjective:
        """Contrast of positions: of cells of a client's large maps, of an edge's maps as they are."""
        return PositionObjective(self.host, lr, CELLS if self.part == "client" else None, t, index)

    def labels(self, batch: Batch, rows: Rows) -> Tensor:
        """The masks."""
        return batch.labels

    def describe(self, batches: Iterable[tuple[Tensor, Tensor]]) -> MaskMoments | None:
        """The classes that have positions enough, and where lesions lie if there are lesions enough."""
        kept: list[Tensor] = []
        found = fit(_positions(batches, kept), self.config.covariance, self.config.rank)
        moments = packed({label: one for label, one in found.items() if one.count >= self.config.min_count})
        seen = layouts.take(kept)
        if seen.lesions < self.config.min_count:
            seen = Layouts(0, seen.empty, torch.empty(0), torch.empty(0))
        return None if moments is None else MaskMoments(moments, seen)

    def sources(self, messages: Mapping[int, MaskMoments | None]) -> Sources | None:
        """By ascending id of the place, which for ``mixture`` has from the others the classes it lacks."""
        sent = [message for _, message in sorted(messages.items()) if message is not None]
        if not sent:
            return None
        places = [unpacked(message.moments) for message in sent]
        by_class = {
            label: [place[label] for place in places if label in place]
            for label in sorted({label for place in places for label in place})
        }
        mixed = self.config.pooling == "mixture"
        how = "exact" if mixed else self.config.pooling
        union = {label: pool(parts, how)[0] for label, parts in by_class.items()}
        return Sources(
            layouts.join(message.layouts for message in sent),
            {label: one.count for label, one in union.items()},
            [{**union, **place} for place in places] if mixed else [union],
            [_count(place) for place in (places if mixed else [union])],
        )

    def draw(self, found: Sources, views: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Maps [views * n, C, h, w] and masks [views * n, H, W]; of equal masks, each view has its own maps.

        A map is of one place, chosen in proportion to positions, and so to images.
        """
        config, border = self.config, self._border
        masks = layouts.draw(found.layouts, config.syn_per_class, border.image, generator)
        masks = masks.repeat(views, 1, 1)
        small = pixels.shrink(masks, border.size)
        like = next(iter(found.places[0].values())).mean
        maps = torch.empty(len(masks), len(like), *border.size, dtype=like.dtype, device=like.device)
        eps = SPREAD_OF_POINTS if config.covariance == "mu_only" else config.eps
        known = [{label: _moments(one) for label, one in place.items()} for place in found.places]
        chosen = torch.multinomial(
            torch.tensor(found.sizes, dtype=torch.float32), len(masks), replacement=True, generator=generator
        )
        # One by one, as a map is large and drawing takes several times its memory.
        for row, place in enumerate(chosen.tolist()):
            maps[row] = pixels.draw(known[place], small[row : row + 1], generator, eps=eps)[0]
        return maps.clamp_min_(0) if config.clip_nonneg else maps, masks

    def pass_on(self, batches: Iterable[tuple[Tensor, Tensor]], found: Sources) -> MaskMoments | None:
        """The classes that were drawn and are known, and the lesions as they came."""
        seen = fit(_positions(batches), self.config.covariance, self.config.rank)
        real = found.counts
        moments = packed({c: replace(one, count=real[c]) for c, one in seen.items() if c in real})
        return None if moments is None else MaskMoments(moments, found.layouts)

    @property
    def _border(self) -> Border:
        """Between the tier below, whose maps are drawn, and this one."""
        border = self.host.parts[{"edge": "client", "main": "edge"}[self.part]][-1]
        assert isinstance(border, Border)
        return border


def _positions(
    batches: Iterable[tuple[Tensor, Tensor]], kept: list[Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Features by position with their labels; the masks are kept on the way."""
    for maps, masks in batches:
        if kept is not None:
            kept.append(masks)
        height, width = maps.shape[-2:]
        yield pixels.by_position(maps, pixels.shrink(masks, (height, width)))


def _count(place: Mapping[int, Gaussian]) -> int:
    return sum(one.count for one in place.values())


def _moments(one: Gaussian) -> Moments:
    return Moments(one.count, one.mean, torch.zeros_like(one.mean) if one.variance is None else one.variance)
