"""What a captured step leaves outside of the model, where a real step would find tensors without data.

The code of a model reaches more than the model: names of its files, attributes of its classes, variables of outer functions,
caches of functions. All of that is afterwards as it was. What is held elsewhere is warned of.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rematic._warning import warn

from .holders import CONTAINERS, Cell, Holder, Mapped

LEFT = (
    "the captured step has left a tensor of shape {} without data in {}, where it outlives the step; a real step would find it "
    "there: empty that before the model runs, or keep it on a module of the model, of which a copy is captured"
)
# Containers in containers, and functions in functions, are followed so far; longer ones than this are not looked at.
DEPTH = 3
MAX_ITEMS = 10_000

Kept = list["weakref.ref[torch.UntypedStorage]"]
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_MISSING = object()


class Surroundings:
    """What the code of a model reaches."""

    def __init__(self, model: nn.Module) -> None:
        self._classes = {kind for module in model.modules() for kind in type(module).__mro__ if not _is_torch(kind)}
        self._holders: dict[int, Holder] = {}
        self._caches: dict[int, Any] = {}
        for kind in self._classes:
            for member in list(vars(kind).values()):
                self._visit(getattr(member, "__func__", member), DEPTH)
            space = getattr(sys.modules.get(kind.__module__), "__dict__", None)
            if space is not None and id(space) not in self._holders:
                self._holders[id(space)] = Mapped(space)
                for value in list(space.values()):
                    self._visit(value, DEPTH)

    def _visit(self, item: Any, depth: int) -> None:
        kind = type(item)
        if not depth or id(item) in self._holders:
            return
        make = Mapped if kind in _MAPPINGS else CONTAINERS.get(kind)
        if make is not None:
            if len(item) <= MAX_ITEMS:
                held = self._holders[id(item)] = make(item)
                for inner in held.items():
                    self._visit(inner, depth - 1)
        elif kind is functools._lru_cache_wrapper:
            self._caches[id(item)] = item
        elif kind is types.FunctionType:
            self._holders[id(vars(item))] = Mapped(vars(item))
            for cell in item.__closure__ or ():
                if id(cell) not in self._holders:
                    content = self._holders[id(cell)] = Cell(cell)
                    for inner in content.items():
                        self._visit(inner, depth - 1)
        elif isinstance(vars_of(item), dict) and not issubclass(kind, (type, types.ModuleType)):
            self._holders[id(vars_of(item))] = Mapped(vars_of(item))
            if issubclass(kind, nn.Module):
                self._holders[id(item._buffers)] = Mapped(item._buffers)

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Whatever happens while it is entered, everything is afterwards as it was."""
        back = [holder.remember() for holder in self._holders.values()]
        back += [_remembered_class(kind) for kind in self._classes]
        try:
            yield
        finally:
            for restore in back:
                restore()
            for cache in self._caches.values():
                if any(tensor.is_meta for tensor in _results(cache)):
                    cache.cache_clear()


def vars_of(item: Any) -> Any:
    """Its attributes, without asking it."""
    try:
        return object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None


def _is_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins")


def _remembered_class(kind: type) -> Callable[[], None]:
    before = dict(vars(kind))

    def restore() -> None:
        for name in [name for name in vars(kind) if name not in before]:
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind).get(name, _MISSING) is not value:
                setattr(kind, name, value)

    return restore


def _results(cached: Any) -> Iterator[Tensor]:
    """The tensors that a cache of a function holds. It may be anybody's: what it holds may hold itself."""
    # With a limit on their number it leads to results itself, and otherwise by a dict of them.
    level = [held for held in gc.get_referents(cached) if held is not getattr(cached, "__dict__", None)]
    seen: set[int] = set()
    for _ in range(DEPTH + 2):
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if issubclass(kind, Tensor):
                yield item
            elif id(item) not in seen:
                seen.add(id(item))
                if issubclass(kind, (dict, list, tuple)) or dataclasses.is_dataclass(kind):
                    inner += gc.get_referents(item)
        level = inner


def clear(kept: Kept) -> None:
    """Empties caches of functions, wherever they are, that hold these storages. Those that are left stay listed."""
    kept[:] = [ref for ref in kept if ref() is not None]
    if kept:
        gc.collect()
        kept[:] = [ref for ref in kept if ref() is not None]
    addresses = _addresses(kept)
    if not addresses:
        return
    for cache in [item for item in gc.get_objects() if type(item) is functools._lru_cache_wrapper]:
        if any(_is_among(tensor, addresses) for tensor in _results(cache)):
            cache.cache_clear()


def warn_of(kept: Kept) -> None:
    """Says of what is left where it is."""
    addresses = _addresses(kept)
    # Asking an object for its class may be more than it bears.
    left = [item for item in gc.get_objects() if issubclass(type(item), Tensor) and _is_among(item, addresses)] if addresses else []
    for tensor in left:
        places = [_place(holder) for holder in gc.get_referrers(tensor) if holder is not left]
        named = [place for place in places if place is not None]
        if named:
            warn(LEFT.format(tuple(tensor.shape), " and ".join(dict.fromkeys(named))))


def _place(holder: Any) -> str | None:
    """Where a tensor is held, in a word; None if it is here."""
    if isinstance(holder, types.FrameType):
        return None
    if type(holder) is dict:
        for owner in gc.get_referrers(holder):
            if vars_of(owner) is holder:
                name = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__name__
                return f"an attribute of {name}"
    # Python may keep attributes without a dict of them.
    is_container = type(holder).__module__ == "builtins"
    return f"a {type(holder).__name__}" if is_container else f"an attribute of {type(holder).__name__}"


def _addresses(kept: Kept) -> set[int]:
    return {storage._cdata for ref in kept if (storage := ref()) is not None}


def _is_among(tensor: Tensor, addresses: set[int]) -> bool:
    return tensor.is_meta and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in addresses
