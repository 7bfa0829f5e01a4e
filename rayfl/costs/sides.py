"""What each side of the cut holds, computes and puts out, and what a client's memory must take."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from rayfl import models
from rayfl.config import ExperimentConfig
from rayfl.costs.phantom import PhantomHost
from rayfl.costs.plan import Plan
from rayfl.cutting import Values


@dataclass(frozen=True)
class Side:
    """The blocks of one role. FLOPs and activations are per sample."""

    role: str
    """client, edge or main."""
    blocks: str
    """Their names, ``first..last`` for each run of consecutive ones."""
    params: int
    """Learnable elements."""
    buffers: int
    """Other elements of the state, such as BatchNorm's running statistics."""
    state_bytes: int
    """Of both: what a model on its way weighs."""
    flops: int
    """Of a forward pass, two per multiply-accumulate: see ``rayfl.models.block_costs``."""
    macs: int
    """Half of that."""
    activation_elements: int
    """Of what leaves this side upwards; 0 at the top of the model."""
    activation_bytes: int
    """Of the same, in the dtype it is sent in."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a client needs at least, for one batch.

    ``sum_j b (psi_j + chi_j) + o_j + w_j + g_j`` over its blocks j: outputs and their gradients, optimiser
    state, weights, gradients. Left out: tensors kept inside a block, the inputs themselves, workspaces of
    kernels, and models that a method holds besides (a copy of the received weights, an auxiliary head).
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Of all blocks' outputs and their gradients, for one batch."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, part.name) for part in fields(self))


def measure(config: ExperimentConfig, plan: Plan) -> tuple[tuple[Side, ...], Memory]:
    """All sides, from the client up, and a client's memory."""
    host = PhantomHost(plan.blueprint)
    whole = plan.blueprint.model().to(dtype=host.dtype)
    names = models.block_names(whole)
    source = plan.source
    batch = min(config.algorithm.batch_size, max(plan.blueprint.facts.num_samples)) * source.views
    costs = models.model_costs(config.model, source.shape, source.num_classes)
    block_flops = {cost.name: cost.flops for cost in costs}
    parts = plan.blueprint.algorithm.cut(config.algorithm, whole)
    blocks = [names.index(name) for name in models.block_names(parts["client"])]
    # Nothing leaves the top block; one that no client holds may want more than what the one below puts out.
    run_through = whole[: max(blocks[-1] + 1, len(names) - 1)]
    outputs = _outputs(run_through, host.batch(source, np.zeros(batch, dtype=np.int64)).inputs)
    sides = []
    for role in ("client", "edge", "main"):
        if role not in parts:
            continue
        held = [names.index(name) for name in models.block_names(parts[role])]
        runs = [[names[i] for i in run] for run in _runs(held)]
        leaving = [outputs[run[-1]] for run in _runs(held) if run[-1] + 1 < len(names)]
        state, params = parts[role].state_dict(), sum(p.numel() for p in parts[role].parameters())
        flops = sum(block_flops.get(names[i], 0) for i in held)
        sides.append(
            Side(
                role=role,
                blocks=", ".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs),
                params=params,
                buffers=sum(value.numel() for value in state.values()) - params,
                state_bytes=sum(map(_bytes, state.values())),
                flops=flops,
                macs=flops // 2,
                activation_elements=sum(value[0].numel() for output in leaving for value in output),
                activation_bytes=sum(_bytes(value[0]) for output in leaving for value in output),
            )
        )
    client = parts["client"]
    trained = [p for p in client.parameters() if p.requires_grad]
    memory = Memory(
        weights=sides[0].state_bytes,
        gradients=sum(map(_bytes, trained)),
        optimizer=_optimizer_bytes(host, trained),
        activations=2 * sum(_bytes(value) for i in blocks for value in outputs[i]),
    )
    return tuple(sides), memory


def _outputs(model: nn.Sequential, value: Values) -> list[tuple[Tensor, ...]]:
    """What each block puts out."""
    outputs = []
    for block in model:
        value = block(value)
        outputs.append((value,) if isinstance(value, Tensor) else value)
    return outputs


def _runs(held: list[int]) -> list[list[int]]:
    """Ascending numbers cut where one is missing."""
    gaps = [i for i in range(1, len(held)) if held[i] != held[i - 1] + 1]
    return [held[a:b] for a, b in pairwise([0, *gaps, len(held)])]


def _optimizer_bytes(host: PhantomHost, parameters: list[nn.Parameter]) -> int:
    """What the optimiser keeps between steps, by letting it make a step."""
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer = host.optimizer(parameters, 1.0)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(_bytes(value) for value in kept if isinstance(value, Tensor))


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()
