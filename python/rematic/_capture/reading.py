"""Operators that need values: what they return, or the shape of it, hangs on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .values import Values

aten = torch.ops.aten
VALID = "what distributions check about their parameters holds"
_DISTRIBUTIONS = torch.distributions.__path__[0]


def _read_scalar(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not tensor.is_meta:
        values.check_current(tensor, func)
        return func(*args, **kwargs)
    if tensor.dtype is torch.bool and not values.is_known(tensor) and _is_validation():
        values.assumptions.add(VALID)
        return True
    return values.read(tensor, func).item()


def _is_validation() -> bool:
    """Whether a distribution looks at its own parameters or values. All is well with them, or the step would end here."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_DISTRIBUTIONS):
            return True
        frame = frame.f_back
    return False


def _read_answer(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Operators that compare two tensors, and return no tensor."""
    return func(*(values.need(tensor, func) for tensor in args[:2]), *args[2:], **kwargs)


def _read_copy(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type == "meta" or not args[0].is_meta:
        return func(*args, **kwargs)
    return func(values.read(args[0], func), **kwargs)


def _on_meta(values: Values, real: Tensor) -> Tensor:
    made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    values.have(made, real)
    return made


def _read_shape(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Operators whose result has a shape that depends on the values of all their operands."""
    if not any(isinstance(item, Tensor) and item.is_meta for item in (*args, *kwargs.values())):
        return func(*args, **kwargs)

    def real(item: Any) -> Any:
        return values.need(item, func) if isinstance(item, Tensor) else item

    out = func(*map(real, args), **{key: real(item) for key, item in kwargs.items()})
    return _on_meta(values, out) if isinstance(out, Tensor) else tuple(_on_meta(values, item) for item in out)


def _read_masked_select(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    source, mask = args
    if not mask.is_meta:
        return func(*args, **kwargs)
    count = int(values.need(mask, func).expand(torch.broadcast_shapes(source.shape, mask.shape)).sum())
    return torch.empty(count, dtype=source.dtype, device="meta")


def _read_index(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks among the indices become positions, as in the kernel."""
    indices: list[Tensor | None] = []
    found = False
    for index in args[1]:
        if index is not None and index.is_meta and index.dtype in (torch.bool, torch.uint8):
            found = True
            indices.extend(_on_meta(values, real) for real in values.need(index, func).nonzero(as_tuple=True))
        else:
            indices.append(index)
    if not found:
        return func(*args, **kwargs)
    return func(args[0], indices, *args[2:], **kwargs)


READERS: dict[Any, Callable[[Values, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.equal.default: _read_answer,
    aten.allclose.default: _read_answer,
    aten._to_copy.default: _read_copy,
    aten.nonzero.default: _read_shape,
    aten._unique.default: _read_shape,
    aten._unique2.default: _read_shape,
    aten.unique_consecutive.default: _read_shape,
    aten.unique_dim.default: _read_shape,
    aten.bincount.default: _read_shape,
    aten.repeat_interleave.Tensor: _read_shape,
    aten.masked_select.default: _read_masked_select,
    aten.index.Tensor: _read_index,
}
