"""Models without content: each block answers with empty tensors of the right shapes and computes nothing."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rayfl.costs.empty import empty
from rayfl.cutting import Values

Answer = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape per sample and dtype of each tensor that a block puts out."""
Answers = dict[Any, tuple[Answer, bool]]
"""By what comes in: the answer, and whether it is a lone tensor, not a tuple."""


class Pass(torch.autograd.Function):
    """From tensors to empty ones of given shapes, and back to a gradient for each tensor that wants one."""

    @staticmethod
    def forward(ctx: Any, answer: Answer, batch: int | None, num_inputs: int, *tensors: Tensor) -> Any:
        ctx.tensors, ctx.num_inputs = tensors, num_inputs
        sizes = () if batch is None else (batch,)
        outputs = tuple(empty((*sizes, *shape), dtype) for shape, dtype in answer)
        ctx.mark_non_differentiable(*[value for value in outputs if not value.is_floating_point()])
        return outputs

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        gradients = [
            # A parameter keeps the gradient that it was once given: a new one would be no different.
            empty(tensor.shape, tensor.dtype)
            if needed and (i < ctx.num_inputs or tensor.grad is None)
            else None
            for i, (tensor, needed) in enumerate(zip(ctx.tensors, ctx.needs_input_grad[3:], strict=True))
        ]
        return None, None, None, *gradients


class HollowBlock:
    """Takes the place of a block's ``forward``. The block keeps its type, its parameters and its buffers."""

    def __init__(self, block: nn.Module, answers: Answers, bfloat16: bool = False) -> None:
        self.block, self.answers, self.bfloat16 = block, answers, bfloat16
        self.parameters = tuple(block.parameters())

    def __call__(self, inputs: Values) -> Values:
        several = (inputs,) if isinstance(inputs, Tensor) else inputs
        key = tuple((value.shape[1:], value.dtype) for value in several)
        if key not in self.answers:
            self.answers[key] = self._ask(isinstance(inputs, Tensor), key)
        answer, single = self.answers[key]
        outputs = Pass.apply(answer, len(several[0]), len(several), *several, *self.parameters)
        result: Values = outputs[0] if single else outputs
        return result

    def _ask(
        self, single: bool, shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]
    ) -> tuple[Answer, bool]:
        """What the block itself makes of two samples, by shapes alone, and whether that is a lone tensor."""
        del self.block.forward
        try:
            # Fake tensors, not those of the meta device: autocast treats them as it does real ones.
            with FakeTensorMode(), torch.no_grad(), torch.device("cpu"):
                state = {
                    name: torch.empty(value.shape, dtype=value.dtype)
                    for name, value in self.block.state_dict(keep_vars=True).items()
                }
                inputs = tuple(torch.empty(2, *shape, dtype=dtype) for shape, dtype in shapes)
                autocast = (
                    torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else contextlib.nullcontext()
                )
                with autocast:
                    given = inputs[0] if single else inputs
                    output = torch.func.functional_call(self.block, state, (given,))
        finally:
            self.block.forward = self
        single = isinstance(output, Tensor)
        return _answer((output,) if single else output), single


def _answer(outputs: Sequence[Tensor]) -> Answer:
    return tuple((tuple(value.shape[1:]), value.dtype) for value in outputs)


class HollowPart(HollowBlock):
    """Takes the place of the ``forward`` of hollow blocks in a row: one step through all of them."""

    def _ask(
        self, single: bool, shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]
    ) -> tuple[Answer, bool]:
        output = tuple(empty((2, *shape), dtype) for shape, dtype in shapes)
        for block in self.block.children():
            output = block(output[0] if single else output)
            single = isinstance(output, Tensor)
            output = (output,) if single else output
        return _answer(output), single


@dataclass
class HollowModel:
    """Builds hollow copies of a model on the meta device; what one copy has learnt of shapes all know."""

    build: Callable[[], nn.Sequential]
    bfloat16: bool = False
    """Whether blocks compute under autocast."""
    answers: dict[int, Answers] = field(default_factory=dict)

    def __call__(self) -> nn.Sequential:
        with torch.device("meta"):
            model = self.build()
        for place, block in enumerate(model):
            block.forward = HollowBlock(block, self.answers.setdefault(place, {}), self.bfloat16)
        return model
