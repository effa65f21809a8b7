"""What stands for the result of an operator that does not run again, because nothing reads what it makes.

It has the shape of the result and no memory. Whoever reads it all the same gets an error, and is written down: a plan that is
followed may be wrong about who reads what, but nothing is ever computed from numbers that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_DETACH = torch.ops.aten.detach.default
UNREAD = (
    "reads what the plan does not make again, as no operator of the step that it was made for reads it there; capture and plan the "
    "step as it runs"
)


class Hollow(Tensor):
    """A tensor without memory."""

    # What is raised where it is read.
    error: type[Exception] = RuntimeError

    # Who has read one.
    readers: list[str]

    @staticmethod
    def __new__(cls, outline: Outline, readers: list[str] | None = None) -> Hollow:
        make: Any = Tensor._make_wrapper_subclass
        made: Hollow = make(
            cls,
            outline.size,
            strides=outline.stride,
            storage_offset=outline.offset,
            dtype=outline.dtype,
            device=outline.device,
        )
        made.readers = [] if readers is None else readers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is _DETACH:
            return Hollow(Outline(args[0]), args[0].readers)
        raise _found((args, kwargs)).is_read(str(func))

    def is_read(self, reader: str) -> Exception:
        """The error that something reads it."""
        self.readers.append(reader)
        return self.error(f"`{reader}` {UNREAD}")

    def data_ptr(self) -> int:
        raise self.is_read("data_ptr")

    def numpy(self, **_: Any) -> Any:
        raise self.is_read("numpy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.is_read("numpy")

    def tolist(self) -> Any:
        raise self.is_read("tolist")

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise self.is_read("__dlpack__")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Hollow(size={tuple(self.size())}, dtype={self.dtype}, device='{self.device}')"


def _found(value: Any) -> Any:
    """The first of them in what an operator is given."""
    if isinstance(value, Hollow):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next(filter(lambda found: found is not None, map(_found, items)), None)


class Outline:
    """The shape of a tensor, without its memory."""

    __slots__ = ("size", "stride", "offset", "dtype", "device")

    def __init__(self, tensor: Tensor) -> None:
        self.size = tuple(tensor.size())
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype
        self.device = tensor.device


class Argument:
    """Stands for what an operator changes in place and returns: which of those that it changes."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class Unshaped(Exception):
    """A result that a shape alone cannot stand for."""


def outlined(value: Any, written: Sequence[Tensor]) -> Any:
    """What an operator has returned, with outlines in place of tensors."""
    if isinstance(value, Tensor):
        for at, tensor in enumerate(written):
            if tensor is value:
                return Argument(at)
        if type(value) is not Tensor or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise Unshaped
        return Outline(value)
    if isinstance(value, (tuple, list)):
        return type(value)([outlined(item, written) for item in value])
    if value is not None:
        raise Unshaped
    return value


def hollowed(value: Any, written: Sequence[Tensor], readers: list[str] | None = None) -> Any:
    """What stands for it when the operator does not run again."""
    if isinstance(value, Outline):
        return Hollow(value, readers)
    if isinstance(value, Argument):
        return written[value.at]
    if isinstance(value, (tuple, list)):
        return type(value)([hollowed(item, written, readers) for item in value])
    return value
