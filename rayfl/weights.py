"""Pretrained weights from a local file: read safely, renamed to the blocks of a backbone, checked.

Files may have the names of the library that a backbone's parts are from (torchvision, timm, or
segmentation_models_pytorch) or rayfl's own. Layers of another task, such as a head of another class count,
stay as they were initialised.
"""

import hashlib
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rayfl import models
from rayfl.errors import UserError
from rayfl.models.blocks import Backbone, Shape

_LOG = logging.getLogger("rayfl.weights")
_CLASSIFIERS = ("fc.", "classifier.", "head.")
"""What a file may hold without being asked for it: the top of a classifier, whatever took its place here."""


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file of weights. Raises UserError if there is none."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"model.weights={path} can't be read ({error.strerror}): give the path of a "
            f".pt, .pth or .safetensors file"
        ) from None


def build(config: models.ModelConfig, input_shape: Shape, num_classes: int, seed: int) -> Backbone:
    """``models.build``, with the weights that ``config.weights`` holds: a pure function of its arguments.

    Raises UserError for a file that doesn't fit, or whose content is not that of ``config.weights_hash``.
    """
    model = models.build(config, input_shape, num_classes, seed)
    if config.weights is not None:
        model.load_state_dict(_fitting(config, input_shape, num_classes), strict=False)
    return model


@lru_cache(maxsize=1)
def _fitting(config: models.ModelConfig, input_shape: Shape, num_classes: int) -> dict[str, Tensor]:
    """What the file has for this backbone, by its names. Remembered: a process builds many copies."""
    assert config.weights is not None
    path = Path(config.weights)
    if config.weights_hash not in (None, file_hash(path)):
        raise UserError(
            f"model.weights={path} is not the file it was: put it back, or drop model.weights_hash"
        )
    content = _read(path)
    model = models.build(config, input_shape, num_classes, 0)
    found: dict[str, Tensor] = {}
    used: set[str | None] = set()
    wrong: list[str] = []
    for name, value in model.state_dict().items():
        key = next((key for key in _spellings(model, name) if key in content), None)
        given = None if key is None else _resized(model, name, content[key], value)
        used.add(key)
        if given is not None and given.shape == value.shape:
            found[name] = given
        elif not name.startswith(model.task) and not name.endswith("num_batches_tracked"):
            wrong.append(
                f"{name} wants {list(value.shape)}, got {list(given.shape) if given is not None else 'none'}"
            )
    wrong += [
        f"{key} has no place" for key in content if key not in used and not key.startswith(_CLASSIFIERS)
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"model.weights={path.name} doesn't fit {config.name}: {'; '.join(wrong[:3])}{more}; "
            f"check model.name, stem, norm, width, patch_size and the image size"
        )
    left = [name for name in model.state_dict() if name not in found and name.startswith(model.task)]
    _LOG.info(
        "%s: %d entries taken, left as initialised: %s", path.name, len(found), ", ".join(left) or "none"
    )
    return found


def _read(path: Path) -> dict[str, Tensor]:
    """The state dict in a file. No code in it is run."""
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Foreign bytes make torch raise nearly anything, a bare KeyError: 105 too.
        told = str(error) if not isinstance(error, LookupError) else "it is something else"
        reason = (told or "it ends too early").splitlines()[0]
        raise UserError(f"model.weights={path} is no file of plain tensors: {reason}") from None
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"model.weights={path} holds no state dict (name -> tensor): save model.state_dict()")
    return dict(content)


def _spellings(model: Backbone, name: str) -> list[str]:
    """How files may call our ``name``: our own way, the library's, or as a mere encoder."""
    prefix = max((p for p in model.upstream if name.startswith(f"{p}.") or name == p), key=len, default=None)
    if prefix is None:
        return [name]
    theirs = (model.upstream[prefix] + name.removeprefix(prefix)).removeprefix(".")
    return [name, theirs, theirs.removeprefix("encoder.")]


def _resized(model: Backbone, name: str, given: Tensor, wanted: Tensor) -> Tensor:
    """Position embeddings of another image size are interpolated, as timm does."""
    if not name.endswith("pos_embed") or given.shape == wanted.shape or given.dim() != 3:
        return given
    from timm.layers.pos_embed import resample_abs_pos_embed

    embedding: Any = model.get_submodule(name.rpartition(".")[0])
    result: Tensor = resample_abs_pos_embed(
        given, list(embedding.patch_embed.grid_size), num_prefix_tokens=embedding.num_prefix_tokens
    )
    return result
