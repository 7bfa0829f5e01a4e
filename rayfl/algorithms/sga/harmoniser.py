"""FedSGA's head: features of any depth into one space, and classes out of it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.messages import Weights


class Harmoniser(nn.Module):
    """Z = W_2 relu(W_1 [LayerNorm(pooled); e(p)] + b_1) + b_2, then the linear head G.

    Called as a block, it gives the logits at the depth that its buffer ``depth`` names (from 1).
    """

    def __init__(
        self,
        size: int,
        num_classes: int,
        num_depths: int,
        generator: torch.Generator,
        *,
        d_z: int = 256,
        d_hid: int = 256,
        d_e: int = 32,
        e_init_std: float = 0.02,
        plain: bool = False,
        own_inputs: Sequence[int] = (),
    ) -> None:
        """``size`` is that of the pooled features; with ``own_inputs`` each depth has a Linear of its own
        from so many features to ``size``. ``plain``: torch's usual spread
        everywhere, embeddings of variance 1, no LayerNorm."""
        super().__init__()
        self.num_depths, self.d_z = num_depths, d_z
        self.inputs = nn.ModuleList(nn.Linear(own, size) for own in own_inputs)
        self.norm = nn.Identity() if plain else nn.LayerNorm(size)
        self.embedding = nn.Parameter(torch.empty(num_depths, d_e))
        self.fc1, self.fc2 = nn.Linear(size + d_e, d_hid), nn.Linear(d_hid, d_z)
        self.classifier = nn.Linear(d_z, num_classes)
        self.depth: Tensor
        self.register_buffer("depth", torch.tensor(1))
        ours = {self.fc1: math.sqrt(2), self.fc2: 1.0}
        for layer in (*self.inputs, self.fc1, self.fc2, self.classifier):
            assert isinstance(layer, nn.Linear)
            gain = math.sqrt(1 / 3) if plain else ours.get(layer, math.sqrt(1 / 3))
            _draw(layer, gain, generator)
        _fill(self.embedding, 1.0 if plain else e_init_std, generator)

    def embed(self, pooled: Tensor, depth: int | Tensor) -> Tensor:
        """[b, size] pooled features that left the client at candidate ``depth`` to Z, [b, d_z]."""
        if len(self.inputs):
            pooled = self.inputs[int(depth) - 1](pooled)
        place = torch.as_tensor(depth - 1, device=pooled.device).reshape(1)
        own = self.embedding.index_select(0, place).expand(len(pooled), -1)
        hidden = self.fc1(torch.cat([self.norm(pooled), own], dim=1))
        result: Tensor = self.fc2(F.relu(hidden))
        return result

    def forward(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embed(pooled, self.depth))
        return logits


class PlainHead(nn.Module):
    """The backbone's own last layer in the harmoniser's place: Z is what is pooled, whatever the depth."""

    def __init__(self, classifier: nn.Linear, own_inputs: Sequence[int] = ()) -> None:
        """``own_inputs`` as for the harmoniser."""
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(own, classifier.in_features) for own in own_inputs)
        self.classifier, self.d_z = classifier, classifier.in_features
        self.depth: Tensor
        self.register_buffer("depth", torch.tensor(1))

    def embed(self, pooled: Tensor, depth: int | Tensor) -> Tensor:
        """[b, size] pooled features to [b, d_z]."""
        if len(self.inputs):
            pooled = self.inputs[int(depth) - 1](pooled)
        return pooled

    def forward(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embed(pooled, self.depth))
        return logits


def shallowest(head: Weights) -> Weights:
    """Of a head's entries those that embed what leaves the client at candidate 1, e(p_1) as [1, d_e].

    There are none of a :class:`PlainHead` without inputs of its own: there Z is what is pooled.
    """
    layers = ("inputs.0.", "norm.", "fc1.", "fc2.")
    found = {name: value for name, value in head.items() if name.startswith(layers)}
    return found | ({"embedding": head["embedding"][:1]} if "embedding" in head else {})


class _Shallowest(nn.Module):
    """A head, called for Z at candidate 1."""

    def __init__(self, head: Harmoniser | PlainHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Tensor) -> Tensor:
        return self.head.embed(pooled, 1)


def embedded(head: Harmoniser | PlainHead, weights: Weights, pooled: Tensor) -> Tensor:
    """[b, C_1] pooled features to Z, [b, d_z], by entries that :func:`shallowest` took of a head alike."""
    named = {f"head.{name}": value for name, value in weights.items()}
    result: Tensor = torch.func.functional_call(_Shallowest(head), named, (pooled,))
    return result


def _draw(layer: nn.Linear, gain: float, generator: torch.Generator) -> None:
    """Normal weights of standard deviation gain / sqrt(fan_in), biases 0."""
    _fill(layer.weight, gain / math.sqrt(layer.in_features), generator)
    nn.init.zeros_(layer.bias)


def _fill(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    drawn = torch.empty(parameter.shape, device="cpu").normal_(0.0, std, generator=generator)
    with torch.no_grad():
        parameter.copy_(drawn)
