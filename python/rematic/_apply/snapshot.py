"""What a region finds around it when it begins, so that it finds the same when it runs again.

A region reads its arguments and its parameters; and it may read anything else that Python can reach: containers and objects
that the caller changes after the call, attributes of its modules, globals, closures, generators of random numbers. All of
that is written down before its first run, and put back for its second; afterwards everything is again as it was before
the second run, so that nothing of it is left: no counter counts twice, and no attribute holds a recomputed tensor.

Tensors are referred to weakly, unless an operator of the region reads them: a tensor that an attribute has kept since
the last step must go when it would go without a plan. Builtin containers are copied; objects are changed in place, and made
anew if nobody else had them.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import random
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rematic._core import PlanError

from .places import Places, is_opaque
from .settings import Settings

# How many values are written down for one region, the nearest first.
MAX_VALUES = 4000

_ATOMS = frozenset(
    [int, float, bool, complex, str, bytes, type(None), type(...), type, range, slice, frozenset, property,
     types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device, torch.Size, torch.layout,
     torch.memory_format]
)  # fmt: skip
_INTERNAL = frozenset(vars(nn.Module())) - {"training"} | {"forward"}
_ITERATORS = (type(iter([])), type(iter(())), type(iter(range(0))), type(reversed([])))
_ONCE = (types.GeneratorType, zip, map, filter, enumerate)
_COPIED = (list, dict, set, collections.deque)
_LEAVE = object()
_MISSING = object()


class KeptTensor:
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
        return _place(self.place)

    def get(self) -> Tensor | None:
        """The tensor, if it is still there."""
        return self.held if self.held is not None else self.ref()

    def decode(self, again: Again) -> Any:
        tensor = self.get()
        return again.gone(self) if tensor is None else tensor


class _Leaf:
    """A tensor among the arguments, which checkpointing keeps."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def decode(self, again: Again) -> Any:
        return again.leaves[self.at]


class _Container:
    """A list, dictionary, set or deque, also of a class of its own, or a tuple."""

    __slots__ = ("make", "keys", "items", "attributes")

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.keys: list[Any] | None = None
        self.items: list[Any] = []
        self.attributes: dict[str, Any] = {}

    def decode(self, again: Again) -> Any:
        items = [_decoded(item, again) for item in self.items] if self.make is tuple else None
        made = again.made[id(self)] = self.make() if items is None else tuple(items)
        if isinstance(made, dict):
            for key, item in zip(self.keys or (), self.items, strict=True):
                dict.__setitem__(made, key, _decoded(item, again))
        elif items is None:
            add = {list: list.append, set: set.add, collections.deque: collections.deque.append}
            for base, function in add.items():
                if isinstance(made, base):
                    for item in self.items:
                        function(made, _decoded(item, again))
        if self.attributes:
            vars(made).update({key: _decoded(item, again) for key, item in self.attributes.items()})
        return made


class _NamedTuple(_Container):
    __slots__ = ()

    def decode(self, again: Again) -> Any:
        return self.make(*(_decoded(item, again) for item in self.items))


class _Iterator:
    """An iterator over something that stays."""

    __slots__ = ("at",)

    def __init__(self, iterator: Any) -> None:
        self.at = copy.copy(iterator)

    def decode(self, again: Again) -> Any:
        return copy.copy(self.at)


class _Array:
    """A numpy array, by its values."""

    __slots__ = ("values",)

    def __init__(self, array: Any) -> None:
        self.values = array.copy()

    def decode(self, again: Again) -> Any:
        return self.values.copy()


class _Space:
    """Names with values, which can be read and written."""

    __slots__ = ("label", "was", "kind")

    def __init__(self, label: str) -> None:
        self.label = label
        self.was: dict[Any, Any] = {}

    def target(self) -> Any:
        raise NotImplementedError

    def read(self, target: Any) -> dict[Any, Any]:
        raise NotImplementedError

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        raise NotImplementedError


class _Object(_Space):
    """An object or a module with its attributes."""

    __slots__ = ("ref", "kind")

    def __init__(self, label: str, owner: Any) -> None:
        super().__init__(label)
        self.kind = type(owner)
        try:
            self.ref: Any = weakref.ref(owner)
        except TypeError:
            # Nothing tells whether others have it too, so it is copied.
            self.ref = lambda: None

    def target(self) -> Any:
        return self.ref()

    def read(self, target: Any) -> dict[Any, Any]:
        state = {key: value for key, value in getattr(target, "__dict__", {}).items() if key not in _INTERNAL}
        for name in _slots(type(target)):
            value = getattr(target, name, _MISSING)
            if value is not _MISSING:
                state[name] = value
        return state

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        space = getattr(target, "__dict__", None)
        slots = _slots(type(target))
        if space is not None:
            for key in [key for key in space if key not in state and key not in _INTERNAL]:
                del space[key]
            space.update({key: value for key, value in state.items() if key not in slots})
        for name in slots:
            if name in state:
                object.__setattr__(target, name, state[name])

    def decode(self, again: Again) -> Any:
        owner = self.ref()
        if owner is not None:
            return owner
        if self.kind is types.SimpleNamespace:
            made = again.made[id(self)] = types.SimpleNamespace()
        else:
            made = again.made[id(self)] = self.kind.__new__(self.kind)
        self.write(made, {key: _decoded(value, again) for key, value in self.was.items() if value is not _LEAVE})
        return made


class _Buffers(_Space):
    """The buffers of a module."""

    __slots__ = ("module",)

    def __init__(self, label: str, module: nn.Module) -> None:
        super().__init__(label)
        self.module = module

    def target(self) -> Any:
        return self.module._buffers

    def read(self, target: Any) -> dict[Any, Any]:
        return dict(target)

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        target.update(state)


class _Names(_Space):
    """Names of a module's dictionary, or attributes of a class."""

    __slots__ = ("space", "names")

    def __init__(self, label: str, space: Any, names: dict[str, None]) -> None:
        super().__init__(label)
        self.space = space
        self.names = names

    def target(self) -> Any:
        return self.space

    def read(self, target: Any) -> dict[Any, Any]:
        space = vars(target) if isinstance(target, type) else target
        return {name: space.get(name, _MISSING) for name in self.names}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        present = self.read(target)
        for name, value in state.items():
            if value is present[name]:
                continue
            if value is _MISSING:
                delattr(target, name) if isinstance(target, type) else target.pop(name)
            elif isinstance(target, type):
                setattr(target, name, value)
            else:
                target[name] = value


class _Cell(_Space):
    """A variable of a function that another function inside it reads."""

    __slots__ = ("cell",)

    def __init__(self, label: str, cell: types.CellType) -> None:
        super().__init__(label)
        self.cell = cell

    def target(self) -> Any:
        return self.cell

    def read(self, target: Any) -> dict[Any, Any]:
        try:
            return {"a variable": target.cell_contents}
        except ValueError:
            return {"a variable": _MISSING}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        value = state["a variable"]
        if value is _MISSING:
            with contextlib.suppress(ValueError):
                del target.cell_contents
        else:
            target.cell_contents = value


class _Generator(_Space):
    """Python's or numpy's generator of random numbers, by its state."""

    __slots__ = ("generator",)

    def __init__(self, label: str, generator: Any) -> None:
        super().__init__(label)
        self.generator = generator

    def target(self) -> Any:
        return self.generator

    def read(self, target: Any) -> dict[Any, Any]:
        if isinstance(target, random.Random):
            return {"state": target.getstate()}
        return {"state": target.get_state() if hasattr(target, "get_state") else target.bit_generator.state}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        if isinstance(target, random.Random):
            target.setstate(state["state"])
        elif hasattr(target, "set_state"):
            target.set_state(state["state"])
        else:
            target.bit_generator.state = state["state"]


class Again:
    """One more run: what it is given, and what has been made for it."""

    def __init__(self, leaves: tuple[Tensor, ...], suspects: dict[int, str]) -> None:
        self.leaves = leaves
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


class Snapshot:
    """What a region finds when it begins."""

    def __init__(
        self, modules: list[tuple[str, nn.Module]], places: Places, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.leaves: list[Tensor] = []
        # What must not be read when it runs again, by storage, with what is wrong with it.
        self.suspects: dict[int, str] = {}
        # What may be read besides the arguments, by storage.
        self.watched: dict[int, KeptTensor] = {}
        self._settings = Settings()
        self._buffers: list[KeptTensor] = []
        self._spaces: list[_Space] = []
        self._left = MAX_VALUES
        self._memo: dict[int, Any] = {}
        # The memo goes by addresses: what they are of must live until it is complete.
        self._alive: list[Any] = []
        self._waiting: collections.deque[tuple[_Space, dict[Any, Any]]] = collections.deque()
        self._own = {id(module) for _, module in modules}
        self._args = [self._argument(value, ("the arguments", at)) for at, value in enumerate(args)]
        self._kwargs = {name: self._argument(value, ("the arguments", name)) for name, value in kwargs.items()}
        for label, module in modules:
            self._module(label, module)
        for space, names in places.names.values():
            self._add(_Names(f"the globals of `{space.get('__name__')}`", space, names))
        for kind, names in places.classes.items():
            if names:
                self._add(_Names(f"the class {kind.__name__}", kind, names))
        for cell in places.cells.values():
            self._add(_Cell("a function's closure", cell))
        for generator in places.generators.values():
            self._generator(generator)
        while self._waiting:
            self._fill(*self._waiting.popleft())
        self._memo.clear()
        self._alive.clear()

    # ---- writing down ----

    def _module(self, label: str, module: nn.Module) -> None:
        space = _Object(f"`{label}`", module)
        self._spaces.append(space)
        self._waiting.append((space, {key: value for key, value in vars(module).items() if key not in _INTERNAL}))
        if module._buffers:
            buffers = _Buffers(f"`{label}`", module)
            self._spaces.append(buffers)
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    kept = buffers.was[name] = KeptTensor(tensor, (buffers.label, name))
                    # Until the region is over: it may replace it.
                    kept.held = tensor
                    self._buffers.append(kept)
                else:
                    buffers.was[name] = None

    def _add(self, space: _Space) -> None:
        self._spaces.append(space)
        self._waiting.append((space, space.read(space.target())))

    def _fill(self, space: _Space, values: dict[Any, Any]) -> None:
        was = space.was
        for key, value in values.items():
            was[key] = value if type(value) in _ATOMS else self._encode(value, (space.label, key))

    def _generator(self, generator: Any) -> None:
        space = _Generator("a generator", generator)
        space.was = space.read(generator)
        self._spaces.append(space)

    def _argument(self, value: Any, place: tuple[str, Any]) -> Any:
        if isinstance(value, Tensor):
            self.leaves.append(value)
            return _Leaf(len(self.leaves) - 1)
        if isinstance(value, _ONCE):
            raise PlanError(
                f"{_place(place).capitalize()} is a {type(value).__name__}, which can be gone through only once, but the plan "
                "runs the module again; give a list, or plan without the module"
            )
        return value if type(value) in _ATOMS else self._encode(value, place, given=True)

    def _encode(self, value: Any, place: tuple[str, Any], given: bool = False) -> Any:
        """What stands for a value, by which it can be had again."""
        known = self._memo.get(id(value))
        if known is not None:
            return known
        self._left -= 1
        if self._left < 0:
            return _LEAVE
        if isinstance(value, Tensor):
            encoded = self._tensor(value, place)
        elif isinstance(value, (*_COPIED, tuple)):
            return self._container(value, place, given)
        elif isinstance(value, _ITERATORS):
            encoded = _Iterator(value)
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            encoded = self._function(value)
        elif _is_generator(value):
            self._generator(value)
            encoded = value
        elif type(value).__name__ == "ndarray" and value.dtype != object:
            encoded = _Array(value)
        elif _has_attributes(value):
            encoded = self._object(value, place)
        else:
            encoded = value
        self._memo[id(value)] = encoded
        self._alive.append(value)
        return encoded

    def _tensor(self, tensor: Tensor, place: tuple[str, Any]) -> Any:
        if tensor.layout is not torch.strided or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            return tensor
        kept = KeptTensor(tensor, place)
        self.watched[tensor.untyped_storage()._cdata] = kept
        return kept

    def _container(self, value: Any, place: tuple[str, Any], given: bool) -> Any:
        kind = type(value)
        if len(value) > MAX_VALUES:
            return _LEAVE
        label = _place(place)
        if isinstance(value, tuple):
            made: _Container = _NamedTuple(kind) if hasattr(value, "_fields") else _Container(tuple)
        else:
            made = _Container(_maker(value))
            # Before what is in it: it may contain itself.
            self._memo[id(value)] = made
            self._alive.append(value)
        if isinstance(value, dict):
            made.keys = list(dict.keys(value))
            items: Any = zip(made.keys, list(dict.values(value)), strict=True)
        else:
            items = enumerate(list(value))
        for key, item in items:
            if type(item) not in _ATOMS:
                item = self._argument(item, (label, key)) if given else self._encode(item, (label, key))
            made.items.append(item)
        if kind not in _COPIED and not isinstance(value, tuple):
            made.attributes = {
                key: self._encode(item, (label, key)) if type(item) not in _ATOMS else item
                for key, item in getattr(value, "__dict__", {}).items()
            }
        if isinstance(value, tuple) and all(a is b for a, b in zip(made.items, value, strict=True)):
            return value
        return made

    def _function(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            self._encode(value.__self__, ("a method", value.__name__))
        elif not is_opaque(value.__module__):
            for cell in value.__closure__ or ():
                if id(cell) not in self._memo:
                    self._memo[id(cell)] = cell
                    self._alive.append(cell)
                    self._add(_Cell(f"the closure of `{value.__name__}`", cell))
        return value

    def _object(self, value: Any, place: tuple[str, Any]) -> Any:
        if isinstance(value, nn.Module):
            if id(value) not in self._own:
                self._own.add(id(value))
                self._module(_place(place).strip("`"), value)
            return value
        space = _Object(_place(place), value)
        self._spaces.append(space)
        self._waiting.append((space, space.read(value)))
        return space

    # ---- the first run ----

    def read(self, storage: int) -> None:
        """An operator of the region reads a storage that is watched."""
        kept = self.watched[storage]
        tensor = kept.ref()
        if tensor is not None and tensor.untyped_storage()._cdata == storage:
            kept.held = tensor

    def close(self) -> None:
        """The first run is over. From now on nothing that it read may change."""
        self.watched = {storage: kept for storage, kept in self.watched.items() if kept.held is not None}
        for space in self._spaces:
            if isinstance(space, _Buffers):
                for name, kept in space.was.items():
                    if kept is not None and space.module._buffers.get(name) is kept.held:
                        kept.held = None
        for kept in [*self.watched.values(), *self._buffers]:
            tensor = kept.get()
            kept.version = tensor._version if tensor is not None else 0

    # ---- the runs after it ----

    @contextlib.contextmanager
    def restored(self, leaves: tuple[Tensor, ...]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """While it is entered, everything is as it was. Gives the arguments."""
        self.suspects.clear()
        for kept in [*self.watched.values(), *self._buffers]:
            tensor = kept.get()
            if tensor is not None and tensor._version != kept.version:
                self.suspects[tensor.untyped_storage()._cdata] = f"{kept}, which was changed in place since"
        again = Again(leaves, self.suspects)
        present: list[tuple[_Space, Any, dict[Any, Any]]] = []
        with self._settings.restored():
            try:
                for space in self._spaces:
                    target = space.target()
                    if target is not None:
                        state = space.read(target)
                        present.append((space, target, state))
                        space.write(target, _state(space.was, state, again))
                yield (
                    [_decoded(value, again) for value in self._args],
                    {name: _decoded(value, again) for name, value in self._kwargs.items()},
                )
            finally:
                for space, target, state in reversed(present):
                    space.write(target, state)


def _state(was: dict[Any, Any], present: dict[Any, Any], again: Again) -> dict[Any, Any]:
    state = {}
    for key, value in was.items():
        if value is not _LEAVE:
            state[key] = _decoded(value, again)
        elif key in present:
            state[key] = present[key]
    return state


def _decoded(value: Any, again: Again) -> Any:
    if type(value) not in _ENCODED:
        return None if value is _LEAVE else value
    made = again.made.get(id(value))
    return value.decode(again) if made is None else made


_ENCODED = frozenset([KeptTensor, _Leaf, _Container, _NamedTuple, _Iterator, _Array, _Object])


def _place(place: tuple[str, Any]) -> str:
    owner, key = place
    return f"`{key}` of {owner}" if isinstance(key, str) else f"element {key} of {owner}"


def _maker(value: Any) -> Callable[[], Any]:
    kind = type(value)
    if isinstance(value, collections.defaultdict):
        factory = value.default_factory
        return lambda: kind(factory)
    if isinstance(value, collections.deque):
        limit = value.maxlen
        return lambda: kind(maxlen=limit)
    return kind if kind.__module__ in ("builtins", "collections") else lambda: kind.__new__(kind)


def _slots(kind: type) -> tuple[str, ...]:
    found = _SLOTS.get(kind)
    if found is None:
        names = [name for base in kind.__mro__ for name in _as_names(vars(base).get("__slots__", ()))]
        found = _SLOTS[kind] = tuple(name for name in names if name not in ("__dict__", "__weakref__"))
    return found


_SLOTS: dict[type, tuple[str, ...]] = {}


def _as_names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, random.Random) or (
        kind.__name__ in ("RandomState", "Generator") and kind.__module__.partition(".")[0] == "numpy"
    )


def _has_attributes(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (nn.Module, types.SimpleNamespace)):
        return True
    if isinstance(value, (type, enum.Enum)) or is_opaque(kind.__module__):
        return False
    return hasattr(value, "__dict__") or bool(_slots(kind))
