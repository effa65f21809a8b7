"""Where the code of modules finds values that somebody may change: in globals, closures and attributes of classes.

A region that runs again must find what it found the first time. Its modules' attributes are known; what else its code reads
is found here, from the names in the code itself, once for every function.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

# What these packages keep for themselves is not the user's.
_OPAQUE = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "rematic"}
_CONSTANTS = frozenset([int, float, bool, complex, str, bytes, type(None), type, types.FunctionType])
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


@functools.cache
def is_opaque(package: str | None) -> bool:
    """Whether nothing in a package is looked at."""
    return (package or "builtins").partition(".")[0] in _OPAQUE


class Places:
    """What some functions read besides their arguments."""

    def __init__(self) -> None:
        # Names in dictionaries of modules: globals.
        self.names: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
        self.cells: dict[int, types.CellType] = {}
        self.classes: dict[type, dict[str, None]] = {}
        # Functions whose default arguments hold something that can change.
        self.functions: dict[int, types.FunctionType] = {}
        # Python's and numpy's generators that they may draw from.
        self.generators: dict[int, Any] = {}
        self._seen: set[Any] = set()

    def add(self, functions: Iterable[Any], owner: type | None = None) -> None:
        """Adds what functions read, and what the functions that they name read. `owner` is the class of `self`."""
        waiting = [(function, owner) for function in functions]
        while waiting:
            function, owner = waiting.pop()
            key = (function, owner)
            if not isinstance(function, types.FunctionType) or key in self._seen or is_opaque(function.__module__):
                continue
            self._seen.add(key)
            defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            if not _CONSTANTS.issuperset(map(type, defaults)):
                self.functions[id(function)] = function
            names = _names(function.__code__)
            if owner is not None:
                self._class(owner, names)
            waiting += ((other, owner) for other in _methods(owner, names))
            for cell in function.__closure__ or ():
                self.cells[id(cell)] = cell
                waiting += self._follow(_content(cell), names)
            space = function.__globals__
            for name in names:
                if name in space:
                    waiting += self._name(space, name, names)

    def _name(self, space: dict[str, Any], name: str, names: tuple[str, ...]) -> Iterator[tuple[Any, type | None]]:
        value = space[name]
        if not isinstance(value, (types.ModuleType, type, *_CODE)):
            self.names.setdefault(id(space), (space, {}))[1][name] = None
        return self._follow(value, names)

    def _follow(self, value: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, type | None]]:
        """The functions behind a value that code names; notes what else is behind it."""
        owner = getattr(value, "__self__", None)
        if is_generator(owner):
            self.generators[id(owner)] = owner
        if isinstance(value, types.ModuleType):
            yield from self._module(value, names)
        elif isinstance(value, type):
            self._class(value)
            yield from ((method, value) for method in _methods(value, ("__init__", "__call__", *names)))
        elif isinstance(value, types.FunctionType):
            yield value, None
        elif isinstance(value, types.MethodType):
            yield value.__func__, type(value.__self__)
        elif isinstance(value, functools.partial):
            yield value.func, None
        elif not isinstance(value, nn.Module) and not is_opaque(type(value).__module__):
            yield from ((method, type(value)) for method in _methods(type(value), ("__call__", "__getitem__", *names)))

    def _module(self, module: types.ModuleType, names: tuple[str, ...]) -> Iterator[tuple[Any, type | None]]:
        if module is random:
            owner = random.random.__self__  # type: ignore[attr-defined]
            self.generators[id(owner)] = owner
        elif module.__name__.partition(".")[0] == "numpy":
            owner = sys.modules["numpy"].random.mtrand._rand
            self.generators[id(owner)] = owner
        elif not is_opaque(module.__name__):
            space = vars(module)
            for name in names:
                if name in space and not isinstance(space[name], types.ModuleType):
                    yield from self._name(space, name, names)

    def _class(self, kind: type, names: Iterable[str] | None = None) -> None:
        """Notes the attributes of a class, or those of them that code names."""
        if is_opaque(kind.__module__):
            return
        space = vars(kind)
        noted = self.classes.setdefault(kind, {})
        for name in space if names is None else space.keys() & set(names):
            value = space[name]
            if not name.startswith("__") and not isinstance(value, _CODE) and not hasattr(type(value), "__get__"):
                noted[name] = None


def places_of(modules: Iterable[nn.Module]) -> Places:
    """What the forwards of modules read."""
    places = Places()
    modules = list(modules)
    for module in modules:
        kind = type(module)
        own = vars(module).get("forward")
        places.add([inspect.getattr_static(kind, "forward", None), own], kind)
        places.add(value for value in _held(module) if isinstance(value, types.FunctionType))
        for base in kind.__mro__:
            places._class(base)
    # Methods of other objects that any of these functions may call.
    names = tuple(dict.fromkeys(name for function, _ in places._seen for name in _names(function.__code__)))
    for value in (value for module in modules for value in _held(module)):
        for function, owner in places._follow(value, names):
            places.add([function], owner)
    return places


def _held(module: nn.Module) -> Iterator[Any]:
    """What a module's attributes hold, among them its hooks."""
    for value in vars(module).values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


@functools.cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names in a function's code and in the functions inside it."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(_names(constant)))
    return tuple(found)


def _methods(kind: type | None, names: Iterable[str]) -> Iterator[Any]:
    """The functions of a class that have one of these names."""
    if kind is None:
        return
    for name in names:
        found = inspect.getattr_static(kind, name, None)
        if isinstance(found, property):
            found = found.fget
        yield getattr(found, "__func__", found)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def is_generator(value: Any) -> bool:
    """Whether it is a generator of random numbers of Python or numpy."""
    kind = type(value)
    return isinstance(value, random.Random) or (
        kind.__name__ in ("RandomState", "Generator") and kind.__module__.partition(".")[0] == "numpy"
    )
