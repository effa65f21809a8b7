"""Tensors made of Python's numbers, and arrays made of tensors.

On the meta device torch forgets the numbers (`torch.tensor([1, 2], device=x.device)`, `x[:, [0, -1]]`), and makes no array
of a tensor. Here both are known. The same operators run for it as on other devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from rematic._model.trees import tensors_in

from .reading import answer
from .readings import BACKWARDS, FORWARD, HOST, MAKES, MAKING, MOVES, TEXTS, differentiate
from .values import Values

# A list as long as that is always a list of positions.
_LONGEST_TUPLE = 32
_POSITIONS = (torch.bool, torch.uint8, torch.int64)
_INDEXING = frozenset((Tensor.__getitem__, Tensor.__setitem__))


class Literals(TorchFunctionMode):
    """While it is entered, tensors on the meta device know the numbers that they are made of."""

    def __init__(self, values: Values, device: str) -> None:
        super().__init__()
        self._values = values
        self._device = device
        self._has_differentiated = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _INDEXING:
            args = self._indexed(*args)
        elif func in MAKING:
            return self._made(func, args, kwargs or {})
        elif func in HOST:
            return self._brought(func, args, kwargs or {})
        elif func in BACKWARDS:
            if not self._has_differentiated:
                self._values.place.check_end(FORWARD)
            self._has_differentiated = True
            return differentiate(self, func, args, kwargs or {})
        elif func in TEXTS:
            return self._text(func, args)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _brought(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a tensor holds, or the tensor, on its way to Python or to another device."""
        tensor = args[0] if args else kwargs["input"]
        if HOST[func] not in MOVES:
            self._values.sees(tensor)
        with self._values.telling(HOST[func], tensor), self._uncounted():
            if func is Tensor.numpy and tensor.is_meta:
                return self._array(tensor, **kwargs)
            if func is Tensor.__array__ and tensor.is_meta:
                made = self._array(tensor)
                return made if len(args) < 2 or args[1] is None else made.astype(args[1], copy=False)
            return func(*args, **kwargs)

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        """While it is entered, what operators read is part of what a function reads."""
        values = self._values
        outer, values.is_counting = values.is_counting, lambda: False
        try:
            yield
        finally:
            values.is_counting = outer

    def _text(self, func: Any, args: Any) -> Any:
        """A text steers nothing: a number in it that is not known reads as zero."""
        values = self._values
        values.sees(args[0])
        inside, values.inside_model = values.inside_model, lambda: False
        try:
            with self._uncounted():
                if func is Tensor.__format__ and args[0].is_meta and args[1] and not args[0].dim():
                    return format(args[0].item(), args[1])
                return func(*args)
        finally:
            values.inside_model = inside

    def _made(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        first = 1 if func is Tensor.new_tensor else 0
        if len(args) > first and isinstance(args[first], (list, tuple)):
            args = (*args[:first], self._listed(args[first]), *args[first + 1 :])
        with self._uncounted():
            out: Tensor = func(*args, **kwargs)
        given = args[first] if len(args) > first else kwargs.get("data", kwargs.get("obj"))
        if out.is_meta and next(tensors_in(given), None) is None:
            self._values.have(out, _real(given, out.dtype))
        return out

    def _listed(self, given: Any) -> Any:
        """A list of numbers in place of one with tensors in it."""
        tensors = list(tensors_in(given))
        if not tensors:
            return given
        for tensor in tensors:
            self._values.sees(tensor)
        reading = self._values.reading(MAKES, ())
        return answer(self._values, MAKES, reading, tensors, lambda: self._numbers(given))

    def _numbers(self, given: Any) -> Any:
        """A nested list with numbers in place of tensors without data."""
        if isinstance(given, (list, tuple)):
            return [self._numbers(item) for item in given]
        if not isinstance(given, Tensor) or not given.is_meta:
            return given
        with _disable_current_modes():
            return self._values.read(given, "torch.tensor").tolist()

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
        with _disable_current_modes():
            made = torch.empty_like(real, device="meta")
        self._values.have(made, real)
        made = torch.ops.aten.lift_fresh.default(made)
        return made if made.dtype in _POSITIONS else made.long()

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


def _is_tuple(index: Any) -> bool:
    """Whether torch takes a sequence for one index for each dimension."""
    if not isinstance(index, list) or len(index) >= _LONGEST_TUPLE:
        return isinstance(index, tuple)
    return any(item is None or item is Ellipsis or isinstance(item, (slice, Tensor, Sequence)) for item in index)


def _real(numbers: Any, dtype: torch.dtype | None) -> Tensor:
    with _disable_current_modes():
        # A copy: an array may be written.
        return torch.tensor(numbers, dtype=dtype, device="cpu").clone()
