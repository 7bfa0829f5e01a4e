"""How well a model does: predictions and losses on fixed rows, and the metrics made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rayfl.host import Host, Source
from rayfl.messages import Weights
from rayfl.training import Rows


@dataclass(frozen=True)
class Score:
    """How a model did on some rows."""

    predictions: Tensor
    """[n] int64 class predicted for each row."""
    loss: float
    """Sum of the cross-entropy over the rows."""


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


def evaluate(host: Host, model: nn.Sequential, source: Source, rows: Rows, batch_size: int = 256) -> Score:
    """Predictions and summed loss of a model on some rows, in batches of a fixed size."""
    predictions, loss = [torch.zeros(0, dtype=torch.int64)], 0.0
    with torch.inference_mode(), host.autocast():
        for start in range(0, len(rows), batch_size):
            batch = host.batch(source, rows[start : start + batch_size])
            logits = model(batch.inputs).double()
            loss += float(nn.functional.cross_entropy(logits, batch.labels, reduction="sum"))
            predictions.append(logits.argmax(1).cpu())
    return Score(torch.cat(predictions), loss)
