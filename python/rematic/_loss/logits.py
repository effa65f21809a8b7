"""What a linear layer returns whose loss is computed in chunks: logits that are never there all at once.

They know their shape and type, and remember what is done to them on the way to the loss: views and parts of their rows, which are taken
of the hidden states instead, and changes number by number (a type, a factor, `tanh`). `cross_entropy` of them is computed over parts of
the rows. Whatever else reads them raises `LogitsError`.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rematic._core import PlanError

from .function import Change, How, as_computed, cross_entropy


class LogitsError(PlanError, AttributeError):
    """Something reads logits that are not computed."""


class Source:
    """The layer that the logits are of, and what it computes with."""

    def __init__(self, path: str, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: int) -> None:
        self.path = path
        self.chunks = chunks
        self.classes = weight.size(0)
        self.dtype = weight.dtype
        self.device = hidden.device
        # What it computes with, until the loss is computed, and as it is now.
        self.computed: tuple[Tensor, Tensor, Tensor | None] | None = (hidden, weight, bias)
        self._versions = self._count_changes()
        self._known: list[weakref.ref[Logits]] = []

    def add(self, logits: Logits) -> None:
        """These are of the layer too."""
        self._known.append(weakref.ref(logits))

    def _count_changes(self) -> list[int]:
        return [tensor._version for tensor in self.computed or () if tensor is not None]

    def is_changed(self) -> bool:
        """Whether something has been written in place that plain logits would have been computed of before."""
        return self._count_changes() != self._versions

    def let_go(self) -> None:
        """The loss is computed. A training loop may hold the output of its model for long, which has only the name of its logits."""
        self.computed = None
        for known in self._known:
            logits = known()
            if logits is not None:
                logits.rows = None
        self._known.clear()


class Logits:
    """Logits that are computed in parts, together with their loss."""

    def __init__(self, source: Source, rows: Tensor, changes: tuple[Change, ...] = (), *, flipped: bool = False) -> None:
        self._source = source
        # The hidden states that they are of, without those of parts that were left out.
        self.rows: Tensor | None = rows
        self._leading = rows.shape[:-1]
        self._changes = changes
        # Whether the classes are the second dimension, and not the last.
        self._flipped = flipped
        source.add(self)

    @staticmethod
    def of(path: str, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: int) -> Logits:
        """Those of a linear layer."""
        hidden, weight, bias = as_computed(hidden, weight, bias)
        return Logits(Source(path, hidden, weight, bias, chunks), hidden)

    # What they are.

    @property
    def shape(self) -> torch.Size:
        """As that of the tensor that is not there."""
        leading, classes = tuple(self._leading), self._source.classes
        return torch.Size((leading[0], classes, *leading[1:]) if self._flipped else (*leading, classes))

    @property
    def dtype(self) -> torch.dtype:
        """Likewise."""
        types = [change.by for change in self._changes if change.kind == "to"]
        return types[-1] if types else self._source.dtype

    @property
    def device(self) -> torch.device:
        """Likewise."""
        return self._source.device

    @property
    def ndim(self) -> int:
        """Likewise."""
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        """They are there for the loss that goes backward."""
        return True

    def dim(self) -> int:
        """Likewise."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """Likewise."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Likewise."""
        return math.prod(self.shape)

    def is_floating_point(self) -> bool:
        """Likewise."""
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<logits of `{self._source.path}`, {tuple(self.shape)}, which are computed in chunks with their loss>"

    # What is done to them on the way.

    def _with(self, rows: Tensor) -> Logits:
        return Logits(self._source, rows, self._changes)

    def _changed(self, kind: str, by: Any = None) -> Logits:
        return Logits(self._source, self._there(), (*self._changes, Change(kind, by)), flipped=self._flipped)

    def _there(self) -> Tensor:
        if self.rows is None:
            self._refuse("they are read after their loss was computed")
        return self.rows

    def _refuse(self, why: str) -> NoReturn:
        raise LogitsError(
            f"The logits of `{self._source.path}` are computed in chunks, together with their loss, and are never there as a whole: {why}. "
            "Train without reading them, or with the plain loss (loss=\"plain\"); in evaluation and under torch.no_grad they are there"
        )

    def to(self, *args: Any, **kwargs: Any) -> Logits:
        """In another type. They cannot go to another device."""
        device, dtype = kwargs.get("device"), kwargs.get("dtype")
        for given in args:
            if isinstance(given, torch.dtype):
                dtype = given
            elif isinstance(given, (Tensor, Logits)):
                device, dtype = given.device, given.dtype
            elif isinstance(given, (torch.device, str, int)) and not isinstance(given, bool):
                device = given
        if device is not None and torch.device(device).type != self.device.type:
            self._refuse(f"they are moved to {device}")
        if dtype is not None and not dtype.is_floating_point:
            self._refuse(f"they are turned into {dtype}")
        return self if dtype in (None, self.dtype) else self._changed("to", dtype)

    def type_as(self, other: Any) -> Logits:
        """Likewise."""
        return self.to(other.dtype)

    def tanh(self) -> Logits:
        """Number by number, as are the two that follow."""
        return self._changed("tanh")

    def _scaled(self, kind: str, by: Any) -> Logits:
        if isinstance(by, bool) or not isinstance(by, (int, float)):
            self._refuse(f"they are changed by a {type(by).__name__}, where only numbers are known ({kind})")
        return self._changed(kind, by)

    def mul(self, other: Any) -> Logits:
        """By a number."""
        return self._scaled("mul", other)

    def div(self, other: Any, *, rounding_mode: Any = None) -> Logits:
        """By a number."""
        if rounding_mode is not None:
            self._refuse("they are rounded")
        return self._scaled("div", other)

    __mul__ = __rmul__ = mul
    __truediv__ = div

    def contiguous(self, **_: Any) -> Logits:
        """They are, wherever they lie."""
        return self

    def reshape(self, *shape: Any) -> Logits:
        """With other leading dimensions."""
        wanted = list(shape[0] if shape and isinstance(shape[0], (tuple, list)) else shape)
        if self._flipped or not wanted or not all(isinstance(size, int) for size in wanted):
            self._refuse(f"they are viewed as {shape}")
        if wanted.count(-1) == 1:
            others = math.prod(size for size in wanted if size != -1)
            wanted[wanted.index(-1)] = self.numel() // max(others, 1)
        if wanted[-1] != self._source.classes or math.prod(wanted[:-1]) != math.prod(self._leading):
            self._refuse(f"{tuple(self.shape)} are viewed as {shape}, which tears their classes apart")
        states = self._there()
        return self._with(states.reshape(*wanted[:-1], states.size(-1)))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Logits:
        """Likewise."""
        start, end = start_dim % self.ndim, end_dim % self.ndim
        if self._flipped or (end == self.ndim - 1 and start != end):
            self._refuse("their classes are flattened")
        return self.reshape(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def transpose(self, first: int, second: int) -> Logits:
        """With the classes as the second of three dimensions, as `cross_entropy` takes them, and back."""
        dims = {first % self.ndim, second % self.ndim}
        if self.ndim != 3 or dims != {1, 2}:
            self._refuse(f"dimensions {first} and {second} are exchanged")
        return Logits(self._source, self._there(), self._changes, flipped=not self._flipped)

    def permute(self, *dims: Any) -> Logits:
        """Likewise."""
        order = tuple(dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
        if self.ndim != 3 or tuple(dim % 3 for dim in order) != (0, 2, 1):
            self._refuse(f"their dimensions are put into the order {order}")
        return self.transpose(1, 2)

    def __getitem__(self, key: Any) -> Logits:
        if self._flipped:
            self._refuse("a part of them is read after their dimensions were exchanged")
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(at, Logits) for at in keys):
            self._refuse("they are an index")
        if any(at is Ellipsis for at in keys):
            before = next(position for position, at in enumerate(keys) if at is Ellipsis)
            missing = self.ndim - (len(keys) - 1 - sum(at is None for at in keys))
            keys = (*keys[:before], *[slice(None)] * missing, *keys[before + 1 :])
        # One index of several rows at a time may be a tensor; it takes the dimensions that it has.
        taken = sum(at.dim() if isinstance(at, Tensor) and at.dtype == torch.bool else at is not None for at in keys)
        if taken > self.ndim or (taken == self.ndim and not (isinstance(keys[-1], slice) and keys[-1] == slice(None))):
            self._refuse("some of their classes are read")
        rows = self._there()[tuple(keys)]
        if rows.dim() < 2:
            self._refuse("those of a single row are read")
        return self._with(rows)

    def __iter__(self) -> NoReturn:
        self._refuse("they are read one after the other")

    def __bool__(self) -> NoReturn:  # noqa: PLE0304 it raises
        self._refuse("their truth is asked for")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("they are turned into an array")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _TYPES:
            return functools.partial(self.to, _TYPES[name])
        self._refuse(f"their `{name}` is asked for")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = _FUNCTIONS.get(func)
        if known is not None and args and isinstance(args[0], Logits):
            return known(*args, **kwargs)
        read = next(_all_logits((args, kwargs)), None)
        assert read is not None
        read._refuse(f"`{getattr(func, '__name__', func)}` reads them")

    # The loss.

    def cross_entropy(
        self,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """`torch.nn.functional.cross_entropy` of them."""
        if weight is not None:
            self._refuse("their cross-entropy weighs classes")
        if label_smoothing:
            self._refuse(f"their cross-entropy smooths labels, by {label_smoothing}")
        if size_average is not None or reduce is not None or reduction not in ("mean", "sum"):
            self._refuse(f"their cross-entropy is not reduced to a mean or a sum (reduction={reduction!r})")
        if target.is_floating_point() or tuple(target.shape) != tuple(self._leading):
            self._refuse(f"their cross-entropy is taken against {target.dtype} of shape {tuple(target.shape)}")
        if self.ndim > 2 and not self._flipped:
            self._refuse(f"their cross-entropy has its classes in dimension 1 of {tuple(self.shape)}")
        rows = self._there()
        assert self._source.computed is not None
        if self._source.is_changed():
            self._refuse("the hidden states or the weight were changed in place between the layer and its loss")
        _, layer, bias = self._source.computed
        dtype = torch.float32 if torch.is_autocast_enabled(self.device.type) and self.dtype != torch.float64 else self.dtype
        how = How(self._source.chunks, self._changes, ignore_index, reduction, dtype)
        if rows.dim() > 2:
            rows, target = rows.reshape(-1, rows.size(-1)), target.reshape(-1)
        self._source.let_go()
        return cross_entropy(rows, layer, bias, target, how)


def _all_logits(value: Any) -> Any:
    if isinstance(value, Logits):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _all_logits(item)
    elif isinstance(value, dict):
        yield from _all_logits(tuple(value.values()))


_TYPES = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    nn.functional.cross_entropy: Logits.cross_entropy,
    torch.tanh: Logits.tanh,
    torch.mul: Logits.mul,
    torch.div: Logits.div,
    torch.reshape: Logits.reshape,
    torch.flatten: Logits.flatten,
    torch.transpose: Logits.transpose,
    torch.permute: Logits.permute,
}
