"""Tensors made of Python's numbers, and arrays made of tensors.

On the meta device torch forgets the numbers (`torch.tensor([1, 2], device=x.device)`, `x[:, [0, -1]]`), and makes no array
of a tensor. Here both are known. No operator runs for it, as on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from .trees import tensors_in
from .values import Values

# A list as long as that is always a list of positions.
_LONGEST_TUPLE = 32
_INDEXING = frozenset((Tensor.__getitem__, Tensor.__setitem__))
_MAKING = frozenset((torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor))


class Literals(TorchFunctionMode):
    """While it is entered, tensors on the meta device know the numbers that they are made of."""

    def __init__(self, values: Values, device: str) -> None:
        super().__init__()
        self._values = values
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _INDEXING:
            args = self._indexed(*args)
        elif func in _MAKING:
            return self._made(func, args, kwargs or {})
        elif func is Tensor.numpy and args[0].is_meta:
            return self._array(args[0], **(kwargs or {}))
        elif func is Tensor.backward:
            # A checkpoint runs forward again there.
            with self:
                return _backward(*args, **(kwargs or {}))
        elif func is Tensor.__array__ and args[0].is_meta:
            made = self._array(args[0])
            return made if len(args) < 2 or args[1] is None else made.astype(args[1], copy=False)
        elif func is Tensor.__format__ and args[0].is_meta and args[1] and not args[0].dim():
            return format(self._number(args[0]), args[1])
        return func(*args, **kwargs) if kwargs else func(*args)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        first = 1 if func is Tensor.new_tensor else 0
        if len(args) > first and isinstance(args[first], (list, tuple)):
            args = (*args[:first], self._numbers(args[first]), *args[first + 1 :])
        out: Tensor = func(*args, **kwargs)
        given = args[first] if len(args) > first else kwargs.get("data", kwargs.get("obj"))
        if out.is_meta and next(tensors_in(given), None) is None:
            self._values.have(out, _real(given, out.dtype))
        return out

    def _numbers(self, given: Any) -> Any:
        """A nested list with numbers in place of tensors without data."""
        if isinstance(given, (list, tuple)):
            return [self._numbers(item) for item in given]
        if not isinstance(given, Tensor) or not given.is_meta:
            return given
        with _disable_current_modes():
            return self._values.read(given, "torch.tensor").tolist()

    def _number(self, tensor: Tensor) -> Any:
        """For a text, which steers nothing, a number that is not known reads as zero."""
        inside, self._values.inside_model = self._values.inside_model, lambda: False
        try:
            return tensor.item()
        finally:
            self._values.inside_model = inside

    def _indexed(self, tensor: Tensor, index: Any, *value: Any) -> tuple[Any, ...]:
        if tensor.is_meta and not isinstance(index, (int, slice, Tensor)):
            if _is_tuple(index):
                index = tuple([self._positions(item) for item in index])
            else:
                index = self._positions(index)
        return tensor, index, *value

    def _positions(self, index: Any) -> Any:
        """For a list or array of numbers, the tensor that torch makes of it."""
        if isinstance(index, (int, slice, Tensor, tuple)) or index is None or index is Ellipsis:
            return index
        try:
            real = _real(index, None)
        except (TypeError, ValueError, RuntimeError):
            # A list of other things is something else to torch.
            return index
        if real.is_floating_point() or not real.dim():
            return index
        real = real if real.dtype is torch.bool else real.long()
        with _disable_current_modes():
            made = torch.empty_like(real, device="meta")
        self._values.have(made, real)
        return made

    def _array(self, tensor: Tensor, *, force: bool = False) -> Any:
        if not force and tensor.requires_grad:
            raise RuntimeError("numpy() is called on a tensor that requires a gradient; detach it first")
        if not force and self._device != "cpu":
            raise TypeError(
                f"numpy() is called on a tensor on {self._device}; copy it to the CPU first: tensor.cpu().numpy()"
            )
        with _disable_current_modes():
            made = self._values.read(tensor, "numpy").clone().numpy()
        # What is written to it would be written to the tensor, unseen.
        made.flags.writeable = False
        return made


def _backward(
    tensor: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _is_tuple(index: Any) -> bool:
    """Whether torch takes a sequence for one index for each dimension."""
    if not isinstance(index, list) or len(index) >= _LONGEST_TUPLE:
        return isinstance(index, tuple)
    return any(item is None or item is Ellipsis or isinstance(item, (slice, Tensor, Sequence)) for item in index)


def _real(numbers: Any, dtype: torch.dtype | None) -> Tensor:
    with _disable_current_modes():
        # A copy: an array may be written.
        return torch.tensor(numbers, dtype=dtype, device="cpu").clone()
