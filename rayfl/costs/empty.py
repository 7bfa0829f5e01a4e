"""Arithmetic on tensors without content: torch's meta device, with a memory of what each operation puts out.

Many of torch's own answers for the meta device are worked out in Python, at up to a millisecond each.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_META = torch.device("meta")
_READING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor without content, made past the mode."""
    with torch._C._DisableTorchDispatch():
        tensor: Tensor = _another(_template(tuple(shape), dtype))
        return tensor


@lru_cache(maxsize=4096)
def _template(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


class EmptyArithmetic(TorchDispatchMode):
    """Within it, an operation on meta tensors costs microseconds, and whoever reads a value reads 0."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.was_read = False
        """Whether anybody looked at a value."""
        self._known: dict[Any, Any] = {}
        """(operation, form of each argument) -> an output of that form; None for an operation in place."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing here is compiled, and the wrapper that skips compilation costs as much as an operation.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        key = (func, *map(_form, args), *map(_form, kwargs.items() if kwargs else ()))
        try:
            known = self._known[key]
        except KeyError:
            return self._first(key, func, args, kwargs or {})
        return args[0] if known is None else _another(known)

    def _first(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _any_meta(args):
            return func(*args, **kwargs)
        if func in _READING:
            self.was_read = True
            return 0
        if torch.device(kwargs.get("device") or _META) != _META:
            self.was_read = True
            return torch.zeros((), dtype=kwargs.get("dtype") or args[0].dtype).expand(args[0].shape)
        if func._schema.name.endswith("_"):
            self._known[key] = None
            return args[0]
        known = func(*args, **kwargs)
        if not _picks(args):
            self._known[key] = known
        return _another(known)


def _form(value: Any) -> Any:
    """What an operation's output depends on."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return value.shape, value.dtype, value.device
    if kind is tuple or kind is list:
        return (kind, *map(_form, value))
    return kind if kind is float else value


def _another(known: Any) -> Any:
    """A tensor like a known one, quicker than anew; ``data`` has a version of its own, ``detach`` hasn't."""
    if isinstance(known, Tensor):
        return known.data
    return type(known)(map(_another, known)) if isinstance(known, tuple | list) else known


def _picks(value: Any) -> bool:
    """Whether there is a mask with content: its values, not its form, say how much is picked."""
    if isinstance(value, tuple | list):
        return any(map(_picks, value))
    return isinstance(value, Tensor) and value.dtype == torch.bool and not value.is_meta


def _any_meta(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_any_meta, value))
    return isinstance(value, Tensor) and value.is_meta
