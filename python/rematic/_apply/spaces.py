"""Places with names and values that can be read and written: where a region finds what it finds."""

from __future__ import annotations

import contextlib
import contextvars
import random
import types
import weakref
from typing import Any

from torch import nn

from .encoded import LEAVE, Again, Encoded, decoded

INTERNAL = frozenset(vars(nn.Module())) - {"training"} | {"forward"}
MISSING = object()


class Space:
    """Names with values, which can be read and written."""

    __slots__ = ("label", "was")

    def __init__(self, label: str) -> None:
        self.label = label
        self.was: dict[Any, Any] = {}

    def target(self) -> Any:
        """What is read and written; None if nobody has it any more."""
        raise NotImplementedError

    def read(self, target: Any) -> dict[Any, Any]:
        """The names with their values."""
        raise NotImplementedError

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        """Gives the names these values."""
        raise NotImplementedError


class ObjectSpace(Space, Encoded):
    """An object or a module with its attributes."""

    __slots__ = ("ref", "kind")

    def __init__(self, label: str, owner: Any) -> None:
        super().__init__(label)
        self.kind: Any = type(owner)
        try:
            self.ref: Any = weakref.ref(owner)
        except TypeError:
            # Nothing tells whether others have it too, so it is copied.
            self.ref = lambda: None

    def target(self) -> Any:
        return self.ref()

    def read(self, target: Any) -> dict[Any, Any]:
        hidden = _hidden(target)
        state = {key: value for key, value in getattr(target, "__dict__", {}).items() if key not in hidden}
        for name in slots_of(type(target)):
            value = getattr(target, name, MISSING)
            if value is not MISSING:
                state[name] = value
        return state

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        space = getattr(target, "__dict__", None)
        slots = slots_of(type(target))
        if space is not None:
            hidden = _hidden(target)
            for key in [key for key in space if key not in state and key not in hidden]:
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
        self.write(made, {key: decoded(value, again) for key, value in self.was.items() if value is not LEAVE})
        return made


class BufferSpace(Space):
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


class TableSpace(Space):
    """A module's parameters, or the modules inside it, by name."""

    __slots__ = ("table",)

    def __init__(self, label: str, table: dict[str, Any]) -> None:
        super().__init__(label)
        self.table = table
        self.was = dict(table)

    def target(self) -> Any:
        return self.table

    def read(self, target: Any) -> dict[Any, Any]:
        return dict(target)

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        if len(target) != len(state) or any(target.get(name, MISSING) is not value for name, value in state.items()):
            target.clear()
            target.update(state)


class ContextSpace(Space):
    """A context variable."""

    __slots__ = ("variable",)

    def __init__(self, label: str, variable: contextvars.ContextVar[Any]) -> None:
        super().__init__(label)
        self.variable = variable

    def target(self) -> Any:
        return self.variable

    def read(self, target: Any) -> dict[Any, Any]:
        return {"its value": target.get(MISSING)}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        # One that has no value cannot lose one again, but was then read as its default.
        if state["its value"] is not MISSING:
            target.set(state["its value"])


class NameSpace(Space):
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
        return {name: space.get(name, MISSING) for name in self.names}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        present = self.read(target)
        for name, value in state.items():
            if value is present[name]:
                continue
            if value is MISSING:
                delattr(target, name) if isinstance(target, type) else target.pop(name)
            elif isinstance(target, type):
                setattr(target, name, value)
            else:
                target[name] = value


class DefaultSpace(Space):
    """The default arguments of a function: by position, and by name."""

    __slots__ = ("function",)

    def __init__(self, label: str, function: types.FunctionType) -> None:
        super().__init__(label)
        self.function = function

    def target(self) -> Any:
        return self.function

    def read(self, target: Any) -> dict[Any, Any]:
        return {**dict(enumerate(target.__defaults__ or ())), **(target.__kwdefaults__ or {})}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        if target.__defaults__:
            target.__defaults__ = tuple(state[at] for at in range(len(target.__defaults__)))
        for name in target.__kwdefaults__ or ():
            target.__kwdefaults__[name] = state[name]


class CellSpace(Space):
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
            return {"a variable": MISSING}

    def write(self, target: Any, state: dict[Any, Any]) -> None:
        value = state["a variable"]
        if value is MISSING:
            with contextlib.suppress(ValueError):
                del target.cell_contents
        else:
            target.cell_contents = value


class GeneratorSpace(Space):
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


def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class have without a dictionary."""
    found = _SLOTS.get(kind)
    if found is None:
        names = [_mangled(name, base) for base in kind.__mro__ for name in _as_names(vars(base).get("__slots__", ()))]
        found = _SLOTS[kind] = tuple(name for name in names if name not in ("__dict__", "__weakref__"))
    return found


_SLOTS: dict[type, tuple[str, ...]] = {}


def _as_names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _mangled(name: str, kind: type) -> str:
    """A slot's name as Python stores it: those that are private to a class have its name in front."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


def _hidden(target: Any) -> frozenset[str]:
    """The attributes that are not looked at: a module's own tables."""
    return INTERNAL if isinstance(target, nn.Module) else frozenset()
