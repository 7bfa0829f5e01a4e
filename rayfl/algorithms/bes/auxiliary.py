"""The model that BESplit trains: a backbone with an evidential head, and a small model for each client."""

import copy
from collections import OrderedDict

import torch
from torch import Tensor, nn

from rayfl import models
from rayfl.algorithms.bes.config import BESConfig, EvidenceConfig
from rayfl.algorithms.bes.evidence import evidence
from rayfl.errors import UserError
from rayfl.models import cut, default_cut
from rayfl.models.blocks import Backbone, Shape
from rayfl.seeding import derive

BODY, HEAD = slice(None, -1), slice(-1, None)
"""Of an auxiliary model: what makes its features, and what makes logits of them."""


class LogAlpha(nn.Module):
    """[b, N] logits to ln alpha, whose softmax is the mean p = alpha / S of the Dirichlet."""

    def __init__(self, config: EvidenceConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, logits: Tensor) -> Tensor:
        return evidence(logits, self.config).log1p()


class Pool(nn.Module):
    """Maps [b, C, H, W] to their means over a grid of cells, [b, C * cells]; tokens to their mean.

    Cells are those of ``nn.AdaptiveAvgPool2d``, whose backward pass on GPUs has no deterministic version.
    """

    def __init__(self, shape: tuple[int, ...], side: int) -> None:
        """``shape`` of a sample; the grid has ``side`` cells to a side, or as many as there are pixels."""
        super().__init__()
        for name, pixels in zip(("down", "across"), shape[1:] if len(shape) == 3 else (1, 1), strict=True):
            self.register_buffer(name, _means(pixels, min(side, pixels)), persistent=False)
        self.size = shape[-1] if len(shape) < 3 else shape[0] * len(self.down) * len(self.across)

    down: Tensor
    across: Tensor

    def forward(self, features: Tensor) -> Tensor:
        features = features.to(self.down.dtype)
        if features.dim() == 4:
            return (self.down @ features @ self.across.T).flatten(1)
        return features.mean(1) if features.dim() == 3 else features


def _means(pixels: int, cells: int) -> Tensor:
    """[cells, pixels] the weight of each pixel in each cell's mean."""
    rows = []
    for cell in range(cells):
        start, stop = cell * pixels // cells, -(-(cell + 1) * pixels // cells)
        rows.append([float(start <= pixel < stop) / (stop - start) for pixel in range(pixels)])
    return torch.tensor(rows)


class Assisted(Backbone):
    """A backbone that knows how its outputs are to be read, and the last layers of an auxiliary model.

    Called, it gives ln alpha where its head is evidential, so that whoever scores it meets p. Its blocks give
    logits.
    """

    reading: EvidenceConfig | None = None
    layers: tuple[nn.Module, ...] = ()
    """In a tuple, which keeps them from being blocks."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits = inputs
        for block in self:
            logits = block(logits)
        return logits if self.reading is None else LogAlpha(self.reading)(logits)


def extended(config: BESConfig, model: nn.Sequential, shape: Shape, seed: int) -> Assisted:
    """The backbone as an :class:`Assisted`.

    Raises UserError where it gives no classes of images, or several tensors at the cut.
    """
    outputs = models.output_shapes(model, shape)
    if len(outputs[-1]) != 1:
        raise UserError(
            "besplit gives evidence to classes of images, the model's outputs are maps: take a dataset and a "
            "model for classification"
        )
    made = Assisted(
        OrderedDict(model._modules),
        getattr(model, "cuts", ()),
        getattr(model, "upstream", None),
        getattr(model, "task", ()),
    )
    if config.loss == "edl":
        made.reading = config.evidence
    if config.dtd.enabled:
        client, _ = parts(config, made)
        leaving = outputs[len(client) - 1]
        if not all(isinstance(size, int) for size in leaving):
            raise UserError(
                f"besplit's auxiliary model pools one tensor at the cut, block "
                f"'{models.block_names(client)[-1]}' puts out several: cut elsewhere, or set "
                f"algorithm.dtd.enabled=false"
            )
        pool = Pool(leaving, 4 if config.dtd.aux_pool == "4x4" else 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "besplit auxiliary"))
            made.layers = (pool, nn.Linear(pool.size, outputs[-1][0]))
    return made


def parts(config: BESConfig, model: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """The client-side and the server-side model."""
    client, main = cut(model, default_cut(model) if config.cut_layer is None else config.cut_layer)
    return client, main


def auxiliary(model: nn.Sequential, client: nn.Sequential) -> nn.Sequential:
    """A new auxiliary model: the blocks of a client-side model as it is made, pooling, and a head."""
    assert isinstance(model, Assisted)
    pool, head = (copy.deepcopy(layer).to(next(model.parameters())) for layer in model.layers)
    blocks = copy.deepcopy(client)._modules
    made = nn.Sequential(OrderedDict([*blocks.items(), ("pool", pool), ("head", head)]))
    # On a CPU small convolutions and their pooling take half the time so.
    return made.to(memory_format=torch.channels_last)
