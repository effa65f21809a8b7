"""What operators return on the meta device, remembered.

Most meta kernels are written in Python, and a model runs the same operators on the same shapes in every layer. What a kernel
makes depends on nothing but the layouts of its tensors and its other arguments, so a tracker need not run it again to count
what it returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_FUNCTIONAL, _OVERWRITES, _OVERWRITES_LIST, _OTHER = range(4)
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_SAME = object()


class _Unlike(Exception):
    """An argument that says more than its layout."""


class Memo:
    """Runs operators, and makes the outputs of those that have run before without running them."""

    def __init__(self) -> None:
        self._kinds: dict[Any, int] = {}
        self._made: dict[Any, Any] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        # Another mode beneath wants to see every operator.
        if kind == _OTHER or not args or torch._C._len_torch_dispatch_stack() > 0:
            return func(*args, **(kwargs or {}))
        try:
            key = (func, _key(args), _key(kwargs) if kwargs else None)
        except _Unlike:
            return func(*args, **(kwargs or {}))
        made = self._made.get(key)
        if made is None:
            result = func(*args, **(kwargs or {}))
            # One that gives an argument another shape must run each time.
            self._made[key] = _key(args) == key[1] and _recipe(kind, result, args, kwargs)
            return result
        if made is False:
            return func(*args, **(kwargs or {}))
        if made is _SAME:
            return None if kind == _OVERWRITES_LIST else args[0]
        returned, layouts = made
        outputs = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in layouts]
        return outputs[0] if returned is Tensor else returned(outputs)


def _kind(func: Any) -> int:
    schema = func._schema
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or any(each.is_out for each in schema.arguments):
        return _OTHER
    if not schema.is_mutable:
        return _OTHER if any(each.alias_info is not None for each in schema.returns) else _FUNCTIONAL
    if func._opname.startswith("_foreach_") and not schema.returns:
        return _OVERWRITES_LIST
    return _OVERWRITES if func._opname.endswith("_") and len(schema.returns) == 1 else _OTHER


def _key(value: Any) -> Any:
    """What a result depends on. Numbers go with their types: 1, 1.0 and True are equal."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        if not value.is_meta or value.layout is not torch.strided or value.dtype.is_complex:
            raise _Unlike
        return (value.dtype, value.shape, value.stride())
    if kind is tuple or kind is list:
        return (kind, *[_key(item) for item in value])
    if kind is dict:
        return tuple([(name, _key(item)) for name, item in value.items()])
    if kind in _PLAIN:
        return (kind, value)
    raise _Unlike


def _recipe(kind: int, result: Any, args: Any, kwargs: Any) -> Any:
    """How to make the result again: a type with layouts, that it is the first argument, or False."""
    if kind == _OVERWRITES_LIST:
        return _SAME if args[0] and result is None else False
    if kind == _OVERWRITES:
        return _SAME if result is args[0] else False
    outputs = [result] if isinstance(result, Tensor) else result
    if type(outputs) not in (tuple, list) or not outputs or not all(map(_is_whole, outputs)):
        return False
    # Not every view says so in its schema.
    taken = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    made = {output.untyped_storage()._cdata for output in outputs}
    if not taken or len(made) < len(outputs) or taken & made:
        return False
    layouts = [(output.shape, output.stride(), output.dtype) for output in outputs]
    return (Tensor if isinstance(result, Tensor) else type(result), layouts)


def _is_whole(output: Any) -> bool:
    """Whether it is a meta tensor that fills its own storage."""
    if type(output) is not Tensor or not output.is_meta or output.layout is not torch.strided:
        return False
    again = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device="meta")
    bytes_made = output.untyped_storage().nbytes()
    return bool(output.storage_offset() == 0 and bytes_made == again.untyped_storage().nbytes())
