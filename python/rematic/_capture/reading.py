"""Operators that need values: what they return, or the shape of it, depends on them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import UnknownValue
from .readings import Reading, shapes_of

if TYPE_CHECKING:
    from .values import Values

aten = torch.ops.aten
VALID = "what distributions check about their parameters holds"
_DISTRIBUTIONS = torch.distributions.__path__[0]
_MASKS = (torch.bool, torch.uint8)

Reader = Callable[["Values", Any, Any, Any], Any]


def answer(
    values: Values, func: Any, reading: Reading | None, tensors: Iterable[Any], compute: Callable[[], Any]
) -> Any:
    """What is read: computed where all of it is known, and otherwise what a real run has read."""
    if reading is not None and reading.result is not None and values.assumed(tensors):
        return values.told_by(reading)
    try:
        if reading is None:
            values.check_choice(tensors, func)
        found = compute()
    except UnknownValue as error:
        if reading is None:
            values.place.miss(error)
        if reading is None or reading.result is None:
            raise
        return values.told_by(reading)
    if reading is not None:
        reading.check(found)
    return found


def _read_scalar(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    reading = values.reading(str(func), shapes_of(args))

    def compute() -> Any:
        if not tensor.is_meta:
            values.check_current(tensor, func)
            return func(*args, **kwargs)
        if tensor.dtype is torch.bool and not values.is_known(tensor) and _is_validation():
            values.assumptions.add(VALID)
            return True
        return values.read(tensor, func).item()

    return answer(values, func, reading, args, compute)


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
    reading = values.reading(str(func), shapes_of(args))
    return answer(
        values, func, reading, args,
        lambda: func(*(values.need(tensor, func) for tensor in args[:2]), *args[2:], **kwargs),
    )  # fmt: skip


def _read_copy(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type == "meta" or not args[0].is_meta:
        return func(*args, **kwargs)
    return func(values.read(args[0], func), **kwargs)


def _on_meta(values: Values, real: Tensor) -> Tensor:
    """On the CPU with all of its memory, of which a kernel may use a part."""
    if values.is_on_cpu:
        memory = torch.UntypedStorage(real.untyped_storage().nbytes(), device="meta")
        made = torch.empty(0, dtype=real.dtype, device="meta").set_(memory, real.storage_offset(), real.shape, real.stride())
    else:
        made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        real = real.clone()
    values.have(made, real)
    return made


def _read_shape(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Operators whose result has a shape that depends on the values of all their operands."""
    items = (*args, *kwargs.values())
    reading = values.reading(str(func), shapes_of(items))

    def real(item: Any) -> Any:
        return values.need(item, func) if isinstance(item, Tensor) and item.is_meta else item

    def compute() -> Any:
        return func(*map(real, args), **{key: real(item) for key, item in kwargs.items()})

    if not any(isinstance(item, Tensor) and item.is_meta for item in items):
        return answer(values, func, reading, (), compute)
    out = answer(values, func, reading, items, compute)
    return _on_meta(values, out) if isinstance(out, Tensor) else tuple(_on_meta(values, item) for item in out)


def _read_masked_select(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    source, mask = args
    reading = values.reading(str(func), shapes_of(args))
    if not mask.is_meta:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    count = answer(values, func, reading, (mask,), lambda: int(values.need(mask, func).expand(shape).sum()))
    return torch.empty(count, dtype=source.dtype, device="meta")


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether there are masks among the indices of a tensor."""
    return any(index is not None and index.dtype in _MASKS for index in indices)


def positions(indices: Sequence[Tensor | None]) -> list[Tensor]:
    """Where the masks among the indices of a tensor are true, dimension by dimension."""
    masks = [index for index in indices if index is not None and index.dtype in _MASKS]
    return [position for mask in masks for position in mask.nonzero(as_tuple=True)]


def _read_index(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks among the indices become positions, as in the kernel."""
    if not has_mask(args[1]):
        return func(*args, **kwargs)
    reading = values.reading(str(func), shapes_of((args[0], *args[1])))
    masks = [index for index in args[1] if index is not None and index.dtype in _MASKS]
    if not any(mask.is_meta for mask in masks):
        return func(*args, **kwargs)
    found = iter(answer(
        values, func, reading, masks, lambda: positions([values.need(mask, func) if mask.is_meta else mask for mask in masks])
    ))  # fmt: skip
    indices: list[Tensor | None] = []
    for index in args[1]:
        if index is not None and index.dtype in _MASKS:
            indices.extend(_on_meta(values, next(found)) for _ in range(index.dim()))
        else:
            indices.append(index)
    return func(args[0], indices, *args[2:], **kwargs)


READERS: dict[Any, Reader] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.equal.default: _read_answer,
    aten.allclose.default: _read_answer,
    aten._to_copy.default: _read_copy,
    aten.nonzero.default: _read_shape,
    aten._unique.default: _read_shape,
    aten._unique2.default: _read_shape,
    aten.unique_consecutive.default: _read_shape,
    aten.unique_dim.default: _read_shape,
    aten.unique_dim_consecutive.default: _read_shape,
    aten.bincount.default: _read_shape,
    aten.repeat_interleave.Tensor: _read_shape,
    aten.masked_select.default: _read_masked_select,
    aten.index.Tensor: _read_index,
}
# Operators of other libraries whose result has a shape that depends on values, and that do not say so by a tag.
_UNTAGGED = frozenset(("torchvision::nms",))


@functools.cache
def reader_of(func: Any) -> Reader | None:
    """What answers an operator that needs values."""
    if func in READERS or func.namespace == "aten":
        return READERS.get(func)
    is_tagged = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    return _read_shape if is_tagged or func._schema.name in _UNTAGGED else None


def read_by(func: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> tuple[Any, Reading | None]:
    """The result of a real operator, and what it has read, if it reads."""
    if reader_of(func) is None or func is aten._to_copy.default:
        return run(), None
    if func is not aten.index.Tensor:
        out = run()
        read = out.numel() if func is aten.masked_select.default else out
        return out, Reading(str(func), shapes_of((*args, *kwargs.values())), read)
    if not has_mask(args[1]):
        return run(), None
    reading = Reading(str(func), shapes_of((args[0], *args[1])), positions(args[1]))
    return run(), reading
