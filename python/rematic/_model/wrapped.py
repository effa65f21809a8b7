"""Tensors around tensors: what `torch.distributed` puts around the part that a rank has.

A `DTensor` knows how its local tensor fits into a whole; an `AsyncCollectiveTensor` waits for a collective when its tensor is first
read. Operators run, and memory is taken, by what is inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PLAIN, _SPREAD, _WAITING = range(3)
_KINDS = {"DTensor": _SPREAD, "AsyncCollectiveTensor": _WAITING}
_known: dict[type, int] = {Tensor: _PLAIN, torch.nn.Parameter: _PLAIN}

_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE


def _kind(kind: type) -> int:
    found = _known.get(kind)
    if found is None:
        # By name: nobody has such tensors who has not imported their module, which takes a second.
        found = _known[kind] = next((_KINDS[base.__name__] for base in kind.__mro__ if base.__name__ in _KINDS), _PLAIN)
    return found


def is_spread(tensor: Tensor) -> bool:
    """Whether the tensor is a rank's part of a whole."""
    return _kind(type(tensor)) == _SPREAD


def has_spread(types: Any) -> bool:
    """Whether an operator's arguments are parts of a whole."""
    return any(_kind(kind) == _SPREAD for kind in types)


def has_wrapped(types: Any) -> bool:
    """Whether an operator's arguments have others inside."""
    return any(_kind(kind) != _PLAIN for kind in types)


def inner(tensor: Tensor) -> Tensor:
    """The tensor in this process's memory."""
    kind = _kind(type(tensor))
    while kind != _PLAIN:
        held: Any = tensor
        tensor = held._local_tensor if kind == _SPREAD else held.elem
        kind = _kind(type(tensor))
    return tensor


def like(tensor: Tensor) -> Callable[[Tensor], Tensor] | None:
    """What puts around another local tensor what is around this one; nothing if it is read as it is."""
    if not is_spread(tensor):
        return None
    kind: Any = type(tensor)
    spec = tensor._spec  # type: ignore[attr-defined]
    return lambda local: kind(local, spec, requires_grad=False)


def is_imagined() -> bool:
    """Whether shapes are worked out now, on tensors that are not there."""
    return _mode(_FAKE) is not None
