"""Tensors in what operators are given and return, which may be tuples and lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

# Stands for what an operator changes in place and returns.
ARGUMENT = object()
# Stands for what is there no more.
_GONE = object()


def detached(tensor: Tensor) -> Tensor:
    """An alias without a place in autograd's graph, which shares the count of changes in place."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A value with what a function makes of its tensors in their place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(item, function) for item in value])
    return value


def filled(value: Any, arguments: Iterator[Tensor]) -> Any:
    """A value with the arguments in place of what was left out."""
    if value is ARGUMENT:
        return next(arguments, None)
    if isinstance(value, (tuple, list)):
        return type(value)([filled(item, arguments) for item in value])
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a value."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


def versions_of(value: Any) -> list[int]:
    """How often each of its tensors was changed in place."""
    found: list[int] = []
    mapped(value, lambda tensor: found.append(tensor._version))
    return found


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator changes."""
    written: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            mapped(given, written.append)
    return written


def is_among(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether it is one of these."""
    return any(tensor is other for other in tensors)


def storages_of(tensors: Sequence[Tensor]) -> set[int]:
    """The memory of tensors."""
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}


class Weak:
    """A tensor that is not kept alive, but can be had again as long as anything keeps its memory."""

    __slots__ = ("_storage", "_dtype", "_device", "_shape")

    def __init__(self, tensor: Tensor) -> None:
        plain = type(tensor) is Tensor and tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())
        self._storage = StorageWeakRef(tensor.untyped_storage()) if plain else None
        if plain:
            self._dtype, self._device = tensor.dtype, tensor.device
            self._shape = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def get(self) -> Any:
        """The tensor, in the same memory."""
        storage = None if self._storage is None else torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            return _GONE
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return torch.empty(0, dtype=self._dtype, device=self._device).set_(storage, *self._shape)


def revived(value: Any) -> tuple[Any, bool]:
    """A value with its tensors in place of what refers to them weakly, and whether all are there."""
    if isinstance(value, Weak):
        tensor = value.get()
        return tensor, tensor is not _GONE
    if isinstance(value, (tuple, list)):
        found = [revived(item) for item in value]
        return type(value)([item for item, _ in found]), all(there for _, there in found)
    return value, True
