"""How a model does on fixed rows, scored as the task has it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from rayfl.host import Batch, Host, Source
from rayfl.messages import Weights
from rayfl.tasks import Score, join
from rayfl.training import Rows

MOST_ROWS = 256
MOST_VALUES = 1 << 22
"""Of a batch: 256 small images, or as many large ones as any party has the memory for."""


def whole(host: Host, parts: Sequence[Weights]) -> nn.Sequential:
    """The joined model in evaluation mode, from the weights of its parts."""
    loaded = getattr(host, "_scored", None)
    if (
        loaded is not None
        and len(loaded[0]) == len(parts)
        and all(a is b for a, b in zip(loaded[0], parts, strict=True))
    ):
        model: nn.Sequential = loaded[1]
        return model
    model = loaded[1] if loaded else host.blueprint.model().to(device=host.device, dtype=host.dtype)
    model.load_state_dict({name: value for part in parts for name, value in part.items()})
    model.eval()
    host._scored = (tuple(parts), model)  # type: ignore[attr-defined]
    return model


def evaluate(host: Host, model: nn.Sequential, source: Source, rows: Rows) -> Score:
    """The score of a model on some rows."""
    if len(rows) == 0:
        return host.task.nothing(host.facts.num_classes)
    pieces, loss = [], 0.0
    with torch.inference_mode(), host.autocast():
        for _, batch in in_batches(host, source, rows):
            pieces.append(host.task.score(model(batch.inputs), batch.labels))
            loss += pieces[-1].loss
    return replace(join(pieces), loss=loss)


def in_batches(host: Host, source: Source, rows: Rows) -> Iterator[tuple[Rows, Batch]]:
    """Rows of a split as they are, in batches whose size depends on the shape of the images alone."""
    size = batch_size(host.image_values)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        yield some, host.batch(source, some)


def batch_size(values_per_row: int) -> int:
    """Rows at once, of so many values each."""
    return min(MOST_ROWS, max(1, MOST_VALUES // values_per_row))
