"""What operators return on the meta device, remembered.

Most meta kernels are written in Python and slow, and a model runs the same operators on the same shapes in every layer.
What a kernel makes depends on nothing but the layouts of its tensors and its other arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._model.trees import tensors_in

from .reading import reader_of
from .values import Values

Layout = tuple[torch.dtype, torch.Size, tuple[int, ...]]

_SAME = object()


class Shapes:
    """Runs operators, and makes the outputs of those that have run before without running them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._known: dict[Any, Any] = {}
        self._kinds: dict[Any, int] = {}

    def run(self, func: Any, args: Any, kwargs: Any, layouts: list[list[int]]) -> Any:
        """The operator's result. `layouts` are the rows of its tensors with those of their layouts."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind == _OVERWRITES_LIST and layouts and args[0][0].is_meta:
            # Nothing but values changes, and the kernel would visit every tensor to find that out.
            self._values.follow(func, args, kwargs, None)
            return None
        if kind == _PLAIN and layouts:
            key = (func, tuple([layout for _, layout in layouts]), _frozen(args), _frozen(kwargs) if kwargs else None)
            known = self._known.get(key)
            if known is None:
                out = self._values.run(func, args, kwargs)
                self._known[key] = _made(out, args, kwargs)
                return out
            if known is not False:
                if type(known) is tuple:
                    out = _make(known)
                else:
                    out = args[0] if known is _SAME else [_make(each) for each in known]
                self._values.follow(func, args, kwargs, out)
                return out
        return self._values.run(func, args, kwargs)


_PLAIN, _OVERWRITES_LIST, _OTHER = range(3)


class ListKernels(TorchDispatchMode):
    """Skips kernels that overwrite lists of tensors without data: optimizers', some of which have no meta kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _kind(func) == _OVERWRITES_LIST and args and args[0] and args[0][0].is_meta:
            return None
        return func(*args, **(kwargs or {}))


def _kind(func: Any) -> int:
    schema = func._schema
    name = func._opname
    if reader_of(func) is not None or any(argument.is_out for argument in func._schema.arguments):
        return _OTHER
    if torch.Tag.inplace_view in func.tags:
        return _OTHER  # its argument has another shape afterwards
    if schema.is_mutable:
        if name.startswith(("_foreach_", "_fused_")) and not schema.returns:
            return _OVERWRITES_LIST
        return _PLAIN if func._opname.endswith("_") and len(schema.returns) == 1 else _OTHER
    if any(returned.alias_info is not None for returned in schema.returns) or func.namespace != "aten":
        return _OTHER
    return _PLAIN


def _frozen(value: Any) -> Any:
    """The arguments but tensors, as a key. Numbers go with their types: 1, 1.0 and True are equal."""
    if isinstance(value, Tensor):
        return Tensor if value.is_meta else (id(value), object())
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, _frozen(item)) for key, item in value.items()])
    return (type(value), value)


def _made(out: Any, args: Any, kwargs: Any) -> Any:
    """How to make the outputs again, or False if that is not enough."""
    if isinstance(out, Tensor) and args and out is args[0]:
        return _SAME
    outputs = [out] if isinstance(out, Tensor) else out
    if not isinstance(outputs, (tuple, list)) or not outputs or not all(isinstance(item, Tensor) for item in outputs):
        return False
    layouts = [_layout(item) for item in outputs]
    if not all(layouts):
        return False
    # Not every view says so in its schema.
    taken = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
    made = {item.untyped_storage()._cdata for item in outputs}
    if len(made) < len(outputs) or taken & made:
        return False
    return layouts if isinstance(out, (tuple, list)) else layouts[0]


def _layout(tensor: Tensor) -> Any:
    """A tensor that fills its own storage."""
    whole = (
        tensor.is_meta
        and tensor.layout is torch.strided
        and tensor._base is None
        and tensor.storage_offset() == 0
    )
    if not whole:
        return False
    layout = (tensor.shape, tensor.stride(), tensor.dtype)
    # A kernel may have made more than it returns.
    return layout if tensor.untyped_storage().nbytes() == _make(layout).untyped_storage().nbytes() else False


def _make(layout: Any) -> Tensor:
    shape, strides, dtype = layout
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
