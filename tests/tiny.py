"""Federations small enough to check by hand, and plain-torch counterparts to check them against.

Everything here can be pickled, so that parties may live in other processes.
"""

import functools
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.algorithms import ALGORITHMS, Algorithm
from rayfl.blueprint import extend
from rayfl.fleet import Fleet, LocalFleet, SealedFleet
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint, Facts
from rayfl.layout import plan_layout
from rayfl.models import has_batch_norm
from rayfl.training import Rows, batches, lr_at, make_optimizer, steps_per_round

State = dict[str, Tensor]
NUM_CLASSES = 3
SIZES = (7, 3, 10, 5)
"""Clients of unequal size; with the default batches of 4, none ends on a batch of one sample."""
CUTS = {"mlp": (1, 2), "batch": (1, 2, 3), "group": (1, 2, 3)}
"""The number of blocks below each legal cut of each model."""
LIGHT: dict[str, dict[str, Any]] = {
    "hsfp": {"local_epochs": 1, "edge_epochs": 1, "cloud_epochs": 1, "syn_per_class": 4},
}
"""Settings of methods whose own defaults take seconds."""
PAIR_CUTS = (1, 2, 3)
"""Those of ``pair``; a tensor crosses the first, a tuple of two the others."""


def build(kind: str) -> nn.Sequential:
    """``mlp``: vectors of 6 through 3 Linear layers with tanh. ``pair``: the same vectors, on two ways in the
    middle. ``batch``, ``group``: 2x8x8 images, two convolutions with that norm, pooling and a head."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        if kind == "mlp":
            blocks: list[nn.Module] = [
                nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
                nn.Sequential(nn.Linear(5, 4), nn.Tanh()),
                nn.Linear(4, NUM_CLASSES),
            ]
        elif kind == "pair":
            blocks = [nn.Sequential(nn.Linear(6, 5), nn.Tanh()), Fork(), Parallel(), Merge()]
        else:
            norm = nn.BatchNorm2d if kind == "batch" else functools.partial(nn.GroupNorm, 2)
            blocks = [
                nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), norm(4), nn.ReLU()),
                nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False), norm(4), nn.ReLU()),
                nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
                nn.Linear(4, NUM_CLASSES),
            ]
        return nn.Sequential(OrderedDict((f"block{i}", block) for i, block in enumerate(blocks)))


class Fork(nn.Module):
    """[b, 5] to a pair of [b, 4] and [b, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x).tanh(), self.right(x).tanh()


class Parallel(nn.Module):
    """The left one of a pair through a layer, the right one as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 3)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.left(pair[0]).tanh(), pair[1]


class Merge(nn.Module):
    """A pair of [b, 3] and [b, 2] to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, NUM_CLASSES)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        logits: Tensor = self.head(torch.cat(pair, dim=1))
        return logits


@dataclass(frozen=True)
class Memory:
    """A dataset split in memory."""

    inputs: Tensor
    labels: Rows
    num_classes: int = NUM_CLASSES

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Rows, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some rows."""
        rows = torch.from_numpy(np.asarray(indices))
        return self.inputs[rows].to(dtype), torch.from_numpy(self.labels)[rows]


def memory(kind: str, count: int, seed: int) -> Memory:
    """Random inputs and labels."""
    draw = torch.Generator().manual_seed(seed)
    shape = (6,) if kind in ("mlp", "pair") else (2, 8, 8)
    inputs = torch.randn(count, *shape, dtype=torch.float64, generator=draw)
    labels = torch.randint(NUM_CLASSES, (count,), generator=draw)
    return Memory(inputs, labels.numpy())


def blueprint(
    method: str | type[Algorithm],
    sizes: Sequence[int] = SIZES,
    model: str = "mlp",
    *,
    edges: Sequence[int] | None = None,
    num_edges: int = 1,
    bn: str = "average",
    seed: int = 3,
    dtype: str = "float64",
    train: Memory | None = None,
    **config: Any,
) -> Blueprint:
    """A federation of clients with ``sizes`` samples each; ``config`` overrides batches of 4, lr 0.1."""
    cast = ALGORITHMS[method] if isinstance(method, str) else method
    bounds = np.cumsum([0, *sizes])
    rows = tuple(np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(bounds))
    test = memory(model, 12, 2)
    light = LIGHT.get(getattr(cast.Config, "name", ""), {})
    chosen = cast.Config(**{"lr": 0.1, "batch_size": 4, **light, **config})
    if edges is None:
        edges = [i * num_edges // len(sizes) for i in range(len(sizes))]
    return Blueprint(
        algorithm=cast,
        config=chosen,
        facts=Facts(
            seed=seed,
            num_samples=tuple(sizes),
            client_edges=tuple(edges),
            num_edges=max(num_edges, *(edge + 1 for edge in edges)),
            num_classes=NUM_CLASSES,
            batch_norm=has_batch_norm(build(model)),
        ),
        model=functools.partial(
            extend,
            cast,
            chosen,
            (6,) if model in ("mlp", "pair") else (2, 8, 8),
            seed,
            functools.partial(build, model),
        ),
        train=memory(model, int(bounds[-1]), 1) if train is None else train,
        test=test,
        client_rows=rows,
        client_test_rows=tuple(np.arange(i, len(test), len(sizes)) for i in range(len(sizes))),
        validation_rows=np.zeros(0, dtype=np.int64),
        bn=bn,
        dtype=dtype,
    )


class Federation:
    """A method at work on a fleet, without evaluation."""

    def __init__(self, plan: Blueprint, fleet: Fleet | None = None) -> None:
        self.plan = plan
        self.fleet = fleet or LocalFleet(plan)
        self.algorithm = plan.algorithm(plan.config, self.fleet)
        self.t = 0

    def run(self, rounds: int = 2) -> "Federation":
        """Go on for some rounds."""
        for _ in range(rounds):
            self.t += 1
            self.fleet.begin_round(self.t)
            self.algorithm.round(self.t)
            self.fleet.settle()
        return self

    def weights(self) -> State:
        """The joined global model; parts that each client has for itself as ``client<i>/...``."""
        merged: State = {}
        with self.fleet.phase("evaluation"):
            for parcel in self.algorithm.global_model(self.t):
                for name, value in self.fleet.gather(parcel).items():
                    if isinstance(name, int):
                        merged.update({f"client{name}/{key}": item for key, item in value.items()})
                    else:
                        merged[name] = value
        self.fleet.settle()
        return {name: value.clone() for name, value in merged.items()}

    def party(self, role: str, index: int = 0) -> Any:
        """The party itself, where it lives in this process."""
        host = self.fleet.layout.home[role, index]
        return self.fleet._hosts[host]._shell.parties[role, index]  # type: ignore[attr-defined]

    def traffic(self, t: int) -> dict[tuple[str, str, str], int]:
        """(link, direction, kind) -> headline bytes of round ``t``; lines without bytes left out."""
        found: Counter[tuple[str, str, str]] = Counter()
        for line, count in self.fleet.ledger.bytes.items():
            if line.round == t and line.phase != "evaluation" and count:
                found[line.link, line.direction, line.kind] += count
        return dict(found)


def run(plan: Blueprint, rounds: int = 2) -> State:
    """The global model after some rounds in this process."""
    return Federation(plan).run(rounds).weights()


def sealed(plan: Blueprint, **layout: Any) -> SealedFleet:
    """The federation spread over hosts that only meet through serialised copies."""
    return SealedFleet(plan, plan_layout(plan, FleetConfig(**layout)))


def initial(plan: Blueprint) -> nn.Sequential:
    """The whole model before round 1, in train mode."""
    return plan.model().double().train()


def client_batches(
    plan: Blueprint, t: int, client: int, steps: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches that a client of any method sees in round ``t``."""
    facts, rows = plan.facts, plan.client_rows[client]
    if steps is None:
        steps = steps_per_round(plan.config, len(rows), facts.batch_norm)
    for chosen in batches(plan.config, rows, steps, facts.batch_norm, facts.seed, t, client):
        yield plan.train.batch(chosen, torch.float64, "cpu")


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return nn.functional.cross_entropy(logits, labels)


def optimizer_for(plan: Blueprint, model: nn.Module, t: int = 1) -> torch.optim.Optimizer:
    """A fresh optimiser as the config asks."""
    return make_optimizer(plan.config, model.parameters(), lr_at(plan.config, t))


def fit(
    model: nn.Module, optimizer: torch.optim.Optimizer, stream: Iterable[tuple[Tensor, Tensor]]
) -> nn.Module:
    """Plain central training on given batches."""
    for inputs, labels in stream:
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
    return model


def state_of(model: nn.Module) -> State:
    """A copy of parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def average(states: Sequence[Mapping[str, Tensor]], masses: Sequence[float]) -> State:
    """The plain weighted mean; counters take the maximum."""
    total = sum(masses)
    return {
        name: sum(state[name] * (mass / total) for state, mass in zip(states, masses, strict=True))
        if states[0][name].is_floating_point()
        else torch.stack([state[name] for state in states]).amax(0)
        for name in states[0]
    }  # type: ignore[misc]


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest absolute difference; names, shapes and dtypes must agree and all be finite."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, value in one.items():
        assert (value.shape, value.dtype) == (other[name].shape, other[name].dtype), name
        assert value.isfinite().all(), name
        worst = max(worst, (value - other[name]).abs().max().item() if value.numel() else 0.0)
    return worst


def identical(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether every bit agrees."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def num_bytes(state: Mapping[str, Tensor]) -> int:
    """The weight of a state dict on a wire, buffers and 8-byte counters included."""
    return sum(value.numel() * value.element_size() for value in state.values())


def part_bytes(plan: Blueprint) -> dict[str, int]:
    """The bytes of each part of the model, written out over its parameters and buffers."""
    return {role: num_bytes(part.state_dict()) for role, part in cut_parts(plan).items()}


def weights_of_three_tiers(plan: Blueprint, t: int) -> Counter[tuple[str, str, str]]:
    """What H-SFP's schedule sends in round ``t`` where ``intervals`` is (2, 3): four clients under two edges,
    all of which take part. Client parts are averaged in rounds 2, 4, 6, edge parts and what edges have of
    clients in 3 and 6; an average goes with its 8-byte mass; the first models are handed out in round 1."""
    part, wanted = part_bytes(plan), Counter[tuple[str, str, str]]()
    both = part["client"] + part["edge"]
    if t == 1:
        wanted["edge-cloud", "down", "weights"] += 2 * both
    if t == 1 or t % 2 == 0 or t % 3 == 0:
        wanted["client-edge", "down", "weights"] += 4 * part["client"]
    if t % 2 == 0:
        wanted["client-edge", "up", "weights"] += 4 * part["client"]
        wanted["client-edge", "up", "counts"] += 4 * 8
    if t % 3 == 0:
        for way in ("up", "down"):
            wanted["edge-cloud", way, "weights"] += 2 * both
        wanted["edge-cloud", "up", "counts"] += 2 * 2 * 8
    return wanted


def cut_parts(plan: Blueprint) -> dict[str, nn.Sequential]:
    """A fresh model cut as the method does."""
    return plan.algorithm.cut(plan.config, initial(plan))


def cut_elements(plan: Blueprint) -> dict[str, int]:
    """Elements per sample that leave each part but the last, upwards."""
    outputs, value = {}, plan.train.batch(np.arange(2), torch.float64, "cpu")[0]
    for role, part in cut_parts(plan).items():
        value = part(value)
        outputs[role] = sum(part[0].numel() for part in ((value,) if isinstance(value, Tensor) else value))
    return outputs


def samples(plan: Blueprint, client: int, steps: int | None = None) -> int:
    """Samples that a client trains on in round 1."""
    return sum(len(labels) for _, labels in client_batches(plan, 1, client, steps))
