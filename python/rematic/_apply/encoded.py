"""What stands for a value that a region found, and by which it can be had again."""

from __future__ import annotations

import collections
import copy
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# A value that is not written down: whatever is there stays.
LEAVE = object()


def place_name(place: tuple[str, Any]) -> str:
    """Where something was found, for errors."""
    owner, key = place
    return f"`{key}` of {owner}" if isinstance(key, str) else f"element {key} of {owner}"


class Again:
    """One more run: what it is given, and what has been made for it."""

    def __init__(self, suspects: dict[int, str]) -> None:
        self.made: dict[int, Any] = {}
        self._suspects = suspects

    def gone(self, kept: KeptTensor) -> Tensor:
        """Stands for a tensor that nobody has any more, as no operator of the region has read it. It has no data, so that
        none can read it now."""
        with torch._C._DisableTorchDispatch():
            made = torch.empty(kept.shape, dtype=kept.dtype, device="meta")
        self.made[id(kept)] = made
        self._suspects[made.untyped_storage()._cdata] = f"{kept}, which is gone"
        return made


class Encoded:
    """Stands for a value."""

    __slots__ = ()

    def decode(self, again: Again) -> Any:
        """The value, for one more run."""
        raise NotImplementedError


def decoded(value: Any, again: Again) -> Any:
    """What stands for a value, or the value itself."""
    if not isinstance(value, Encoded):
        return None if value is LEAVE else value
    made = again.made.get(id(value))
    return value.decode(again) if made is None else made


class KeptTensor(Encoded):
    """A tensor that was there when the region began."""

    __slots__ = ("ref", "held", "version", "place", "shape", "dtype")

    def __init__(self, tensor: Tensor, place: tuple[str, Any]) -> None:
        self.ref = weakref.ref(tensor)
        self.shape, self.dtype = tensor.shape, tensor.dtype
        # Not to lose it, once an operator has read it.
        self.held: Tensor | None = None
        self.version = 0
        self.place = place

    def __str__(self) -> str:
        return place_name(self.place)

    def get(self) -> Tensor | None:
        """The tensor, if it is still there."""
        return self.held if self.held is not None else self.ref()

    def decode(self, again: Again) -> Any:
        tensor = self.get()
        return again.gone(self) if tensor is None else tensor


class Container(Encoded):
    """A list, dictionary, set or deque, also of a class of its own, or a tuple."""

    __slots__ = ("make", "keys", "items", "attributes")

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.keys: list[Any] | None = None
        self.items: list[Any] = []
        self.attributes: dict[str, Any] = {}

    def decode(self, again: Again) -> Any:
        items = [decoded(item, again) for item in self.items] if self.make is tuple else None
        made = again.made[id(self)] = self.make() if items is None else tuple(items)
        if isinstance(made, dict):
            # Not by methods of its class; an ordered one keeps its order besides the dictionary.
            put = (collections.OrderedDict if isinstance(made, collections.OrderedDict) else dict).__setitem__
            for key, item in zip(self.keys or (), self.items, strict=True):
                put(made, key, decoded(item, again))
        elif items is None:
            add = {list: list.append, set: set.add, collections.deque: collections.deque.append}
            for base, function in add.items():
                if isinstance(made, base):
                    for item in self.items:
                        function(made, decoded(item, again))
        if self.attributes:
            vars(made).update({key: decoded(item, again) for key, item in self.attributes.items()})
        return made


class NamedContainer(Container):
    """A tuple of a class of its own."""

    __slots__ = ()

    def decode(self, again: Again) -> Any:
        items = [decoded(item, again) for item in self.items]
        # Those of torch, such as what `max` returns, are made by their class only.
        kind: Any = self.make
        made = kind(items) if hasattr(kind, "n_fields") else tuple.__new__(kind, items)
        if self.attributes:
            vars(made).update({key: decoded(item, again) for key, item in self.attributes.items()})
        return made


# Iterators of Python's own that a copy begins anew where they are; what they go through stays.
_SIMPLE: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(reversed([])), itertools.count, itertools.repeat,
)  # fmt: skip


class OneWay(Exception):
    """An iterator cannot be copied: what it has given is gone."""


def copied_iterator(iterator: Any) -> Any:
    """An iterator that goes on from the same place, and leaves this one where it is."""
    if isinstance(iterator, _SIMPLE):
        return copy.copy(iterator)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind, args, *rest = iterator.__reduce__()
    except TypeError as error:
        raise OneWay from error
    if not isinstance(kind, type) or kind.__module__ not in ("builtins", "itertools"):
        raise OneWay
    made = kind(*_copied_inside(args))
    if rest and rest[0] is not None:
        made.__setstate__(_copied_inside(rest[0]))
    return made


def _copied_inside(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copied_inside(item) for item in value)
    if isinstance(value, Iterator):
        return copied_iterator(value)
    return list(value) if type(value) is list else value


def progress_of(generator: Any) -> Any:
    """Tells whether a generator has gone on: where it is, and what its variables are."""
    frame = generator.gi_frame
    if frame is None:
        return None
    values = list(frame.f_locals.values())
    left = [operator.length_hint(value, -1) for value in values if isinstance(value, Iterator)]
    return frame.f_lasti, [id(value) for value in values], left


class Rewound(Encoded):
    """An iterator where it was."""

    __slots__ = ("at",)

    def __init__(self, iterator: Any) -> None:
        self.at = copied_iterator(iterator)

    def decode(self, again: Again) -> Any:
        return copied_iterator(self.at)


class ArrayCopy(Encoded):
    """A numpy array, by its values."""

    __slots__ = ("values",)

    def __init__(self, array: Any) -> None:
        self.values = array.copy()

    def decode(self, again: Again) -> Any:
        return self.values.copy()


def maker_of(value: Any) -> Callable[[], Any]:
    """What makes an empty container like this one."""
    kind: Any = type(value)
    if isinstance(value, collections.defaultdict):
        factory = value.default_factory
        return lambda: kind(factory)
    if isinstance(value, collections.deque):
        limit = value.maxlen
        return lambda: kind(maxlen=limit)
    return kind if kind.__module__ in ("builtins", "collections") else lambda: kind.__new__(kind)
