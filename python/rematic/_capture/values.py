"""Values for models that look at them.

Meta tensors have none. But masks, positions and counters are small, and come from inputs that are real or from
operators like `arange`. Such a tensor remembers how it was made, and if its value is asked for, it is computed on the
CPU. Where a model routes by numbers that cannot be known (the experts of a mixture), an even spread is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import UnknownValue

# Integers up to this many elements, and floats up to that many, are computed if asked for.
MAX_INTEGERS = 1 << 22
MAX_FLOATS = 1 << 10

BALANCED = "routing assumed balanced"

aten = torch.ops.aten
_HOST = torch.device("cpu")


class Value:
    """How to compute a tensor's value: an operator on other values. It holds no tensor of the step."""

    __slots__ = ("_compute", "_result", "version", "assumption")

    def __init__(self, compute: Callable[[], Any], version: int, assumption: str | None = None) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._result: Any = None
        self.version = version
        self.assumption = assumption

    def get(self, values: Values) -> Any:
        """The value, on the CPU."""
        if self._compute is not None:
            self._result = self._compute()
            self._compute = None
            if self.assumption is not None:
                values.assumptions.add(self.assumption)
        return self._result


def _version(tensor: Tensor) -> int:
    """How often the tensor was changed in place; under `torch.inference_mode` nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= (MAX_FLOATS if tensor.is_floating_point() else MAX_INTEGERS)


def _spread(shape: torch.Size, dim: int, extent: int) -> Tensor:
    """Indices below `extent` along `dim`, each used as often as the others."""
    dim %= max(len(shape), 1)
    chosen = shape[dim] if shape else 1
    rows = shape.numel() // max(chosen, 1)
    flat = torch.arange(rows * chosen).remainder(max(extent, 1)).view(rows, chosen)
    others = [size for axis, size in enumerate(shape) if axis != dim]
    return flat.view(*others, chosen).movedim(-1, dim) if shape else flat.view(())


class Values(TorchDispatchMode):
    """Answers operators that need values, and remembers how small tensors are made."""

    def __init__(self, inside_model: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.assumptions: set[str] = set()
        self._inside_model = inside_model
        self._random: dict[Any, bool] = {}

    def know(self, tensor: Tensor, value: Tensor) -> None:
        """The tensor stands for a real one."""
        tensor._rematic_value = Value(lambda: value, _version(tensor))  # type: ignore[attr-defined]

    def value_of(self, tensor: Tensor) -> Value | None:
        """How to compute the tensor's value, if it is known."""
        if not tensor.is_meta:
            return Value(lambda: tensor, 0)
        value: Value | None = getattr(tensor, "_rematic_value", None)
        return value if value is not None and value.version == _version(tensor) else None

    def _need(self, tensor: Tensor, func: Any) -> Any:
        value = self.value_of(tensor)
        if value is None:
            raise UnknownValue(
                f"The model looks at the value of a {str(tensor.dtype).removeprefix('torch.')} tensor of shape "
                f"{tuple(tensor.shape)} (`{func}`), which depends on weights or inputs that have no values here"
            )
        return value.get(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator."""
        reader = READERS.get(func)
        if reader is not None:
            out = reader(self, func, args, kwargs)
        else:
            out = func(*args, **kwargs)
        if type(out) is Tensor:
            if out.is_meta and not (out.dtype.is_floating_point and out.numel() > MAX_FLOATS):
                self._remember(func, args, kwargs, out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                if type(item) is Tensor and item.is_meta and _is_small(item):
                    self._remember(func, args, kwargs, out)
                    break
        return out

    def _remember(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        tensors = out if isinstance(out, (tuple, list)) else (out,)
        chosen = _CHOICES.get(func)
        known = True

        def of(item: Any) -> Any:
            nonlocal known
            if isinstance(item, Tensor):
                value = self.value_of(item) if _is_small(item) else None
                if value is None:
                    known = False
                return value
            if isinstance(item, (list, tuple)):
                return [of(inner) for inner in item]
            if isinstance(item, torch.device):
                return _HOST
            return item

        operands = [of(item) for item in args]
        if known:
            keywords = {key: of(item) for key, item in kwargs.items()}
        if not known:
            if chosen is not None:
                chosen(args, kwargs, tensors)
            return
        if func in _UNKNOWN or self._is_random(func):
            return
        mutated = func._schema.is_mutable
        if mutated and (not args or tensors[0] is not args[0]):
            return

        def compute() -> Any:
            def real(item: Any) -> Any:
                if isinstance(item, Value):
                    return item.get(self)
                return [real(inner) for inner in item] if isinstance(item, list) else item

            positional = [real(operand) for operand in operands]
            if mutated:
                positional[0] = positional[0].clone()
            return func(*positional, **{key: real(item) for key, item in keywords.items()})

        # Views count the changes of what they are views of, but not yet here, below autograd.
        is_view = not mutated and any(returned.alias_info is not None for returned in func._schema.returns)
        version = _version(args[0]) if (is_view or mutated) and isinstance(args[0], Tensor) else 0
        if len(tensors) == 1 and tensors[0] is out:
            out._rematic_value = Value(compute, version + mutated)
            return
        whole = Value(compute, 0)

        def part(position: int) -> Callable[[], Any]:
            return lambda: whole.get(self)[position]

        for position, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor) and _is_small(tensor):
                tensor._rematic_value = Value(part(position), version)  # type: ignore[attr-defined]

    def _is_random(self, func: Any) -> bool:
        random = self._random.get(func)
        if random is None:
            random = self._random[func] = torch.Tag.nondeterministic_seeded in func.tags
        return random


# ---- operators that need values ----


def _read_scalar(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not tensor.is_meta:
        return func(*args, **kwargs)
    if values.value_of(tensor) is None and not values._inside_model():
        # Around the model a number is read to be logged, or to ask whether something went wrong: nothing did.
        return torch.zeros((), dtype=tensor.dtype).item()
    return values._need(tensor, func).item()


def _read_equal(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*(values._need(tensor, func) for tensor in args[:2]))


def _read_copy(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type == "meta" or not args[0].is_meta:
        return func(*args, **kwargs)
    if values.value_of(args[0]) is None and not values._inside_model():
        return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
    return func(values._need(args[0], func), **kwargs)


def _on_meta(values: Values, real: Tensor) -> Tensor:
    made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    values.know(made, real)
    return made


def _read_shape(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Operators whose result has a shape that depends on the values of all their operands."""
    if not any(isinstance(item, Tensor) and item.is_meta for item in args):
        return func(*args, **kwargs)
    operands = [values._need(item, func) if isinstance(item, Tensor) else item for item in args]
    out = func(*operands, **kwargs)
    return _on_meta(values, out) if isinstance(out, Tensor) else tuple(_on_meta(values, item) for item in out)


def _read_masked_select(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    source, mask = args
    if not mask.is_meta:
        return func(*args, **kwargs)
    count = int(values._need(mask, func).expand(torch.broadcast_shapes(source.shape, mask.shape)).sum())
    return torch.empty(count, dtype=source.dtype, device="meta")


def _read_index(values: Values, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks among the indices become positions, as in the kernel."""
    position = 1
    indices: list[Tensor | None] = []
    found = False
    for index in args[position]:
        if index is not None and index.is_meta and index.dtype in (torch.bool, torch.uint8):
            found = True
            indices.extend(_on_meta(values, real) for real in values._need(index, func).nonzero(as_tuple=True))
        else:
            indices.append(index)
    if not found:
        return func(*args, **kwargs)
    return func(args[0], indices, *args[2:], **kwargs)


READERS: dict[Any, Callable[[Values, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.equal.default: _read_equal,
    aten._to_copy.default: _read_copy,
    aten.nonzero.default: _read_shape,
    aten._unique2.default: _read_shape,
    aten.unique_consecutive.default: _read_shape,
    aten.unique_dim.default: _read_shape,
    aten.bincount.default: _read_shape,
    aten.repeat_interleave.Tensor: _read_shape,
    aten.masked_select.default: _read_masked_select,
    aten.index.Tensor: _read_index,
}
# Their values are known already, or never.
_UNKNOWN = frozenset(READERS) - {aten._to_copy.default, aten.index.Tensor} | {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}


# ---- choices among numbers that cannot be known ----


def _choose_topk(args: Any, kwargs: Any, out: Any) -> None:
    source, indices = args[0], out[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    _choose(source, indices, dim)


def _choose_max(args: Any, kwargs: Any, out: Any) -> None:
    source, indices = args[0], out[-1]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is not None and indices.dim() == source.dim():
        _choose(source, indices, dim)
    elif dim is not None:
        shape, extent = indices.shape, source.size(dim)
        indices._rematic_value = Value(
            lambda: torch.arange(shape.numel()).remainder(extent).view(shape), _version(indices), BALANCED
        )


def _choose(source: Tensor, indices: Tensor, dim: int) -> None:
    shape, extent = indices.shape, source.size(dim) if source.dim() else 1
    indices._rematic_value = Value(  # type: ignore[attr-defined]
        lambda: _spread(shape, dim, extent), _version(indices), BALANCED
    )


_CHOICES: dict[Any, Callable[[Any, Any, Any], None]] = {
    aten.topk.default: _choose_topk,
    aten.argmax.default: _choose_max,
    aten.max.dim: _choose_max,
}
