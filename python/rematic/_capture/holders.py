"""Objects that hold others in places: how to see what is there, to put something else there, and to put it back. Those that are containers
have it as `container`."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rematic._model.trees import map_tensors, tensors_in

Change = Callable[[Tensor], Tensor]


def changed(value: Any, change: Change) -> Any:
    """A value with its tensors changed, if it is one or a tuple of them; other containers have places of their own."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and any(change(tensor) is not tensor for tensor in tensors_in(value)):
        return map_tensors(value, change)
    return value


class Mapped:
    """A dictionary. Its keys may be tensors too, as in an optimizer's state."""

    def __init__(self, held: dict[Any, Any]) -> None:
        self.container = held

    def items(self) -> list[Any]:
        return list(self.container.values())

    def remember(self) -> Callable[[], None]:
        before = dict(self.container)

        def restore() -> None:
            held = self.container
            if len(held) == len(before) and all(
                key is other and value is held[key] for (key, value), other in zip(before.items(), held, strict=True)
            ):
                return
            # Never empty in between: it may be what a module's functions look names up in.
            held.update(before)
            for key in held.keys() - before.keys():
                del held[key]
            if any(key is not other for key, other in zip(before, held, strict=True)):
                held.clear()
                held.update(before)

        return restore

    def replace(self, change: Change) -> None:
        for key, value in list(self.container.items()):
            new = changed(value, change)
            if new is not value:
                self.container[key] = new


class Listed:
    """A list or a deque."""

    def __init__(self, held: Any) -> None:
        self.container = held

    def items(self) -> list[Any]:
        return list(self.container)

    def remember(self) -> Callable[[], None]:
        before = list(self.container)

        def restore() -> None:
            held = self.container
            if len(held) == len(before) and all(item is other for item, other in zip(held, before, strict=True)):
                return
            held.clear()
            held.extend(before)

        return restore

    def replace(self, change: Change) -> None:
        for position, item in enumerate(self.container):
            new = changed(item, change)
            if new is not item:
                self.container[position] = new


class Collected:
    """A set."""

    def __init__(self, held: set[Any]) -> None:
        self.container = held

    def items(self) -> list[Any]:
        return list(self.container)

    def remember(self) -> Callable[[], None]:
        before = set(self.container)

        def restore() -> None:
            if self.container != before:
                self.container.clear()
                self.container.update(before)

        return restore

    def replace(self, change: Change) -> None:
        for item in [item for item in self.container if isinstance(item, Tensor) and change(item) is not item]:
            self.container.remove(item)
            self.container.add(change(item))


class Cell:
    """A variable of an outer function."""

    container: None = None

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def items(self) -> list[Any]:
        with contextlib.suppress(ValueError):  # nothing is in it yet
            return [self._cell.cell_contents]
        return []

    def remember(self) -> Callable[[], None]:
        before = self.items()

        def restore() -> None:
            if before:
                self._cell.cell_contents = before[0]
            elif self.items():
                del self._cell.cell_contents

        return restore

    def replace(self, change: Change) -> None:
        for value in self.items():
            new = changed(value, change)
            if new is not value:
                self._cell.cell_contents = new


class Named:
    """Some names of a module's globals."""

    container: None = None

    def __init__(self, held: dict[str, Any], names: set[str]) -> None:
        self._held = held
        self._names = sorted(names)

    def items(self) -> list[Any]:
        return [self._held[name] for name in self._names if name in self._held]

    def remember(self) -> Callable[[], None]:
        before = {name: self._held[name] for name in self._names if name in self._held}

        def restore() -> None:
            for name in self._names:
                if name in before:
                    self._held[name] = before[name]
                else:
                    self._held.pop(name, None)

        return restore

    def replace(self, change: Change) -> None:
        for name in self._names:
            if name in self._held:
                new = changed(self._held[name], change)
                if new is not self._held[name]:
                    self._held[name] = new


class Slots:
    """The attributes of an object that has no dictionary for them."""

    container: None = None

    def __init__(self, item: Any) -> None:
        self._item = item
        listed = [vars(kind).get("__slots__", ()) for kind in type(item).__mro__]
        names = [name for slots in listed for name in ((slots,) if isinstance(slots, str) else slots)]
        # A class below may have a property of that name, which is no attribute.
        self.names = [
            name
            for name in names
            if not name.startswith("__") and isinstance(getattr(type(item), name, None), types.MemberDescriptorType)
        ]

    def _present(self) -> dict[str, Any]:
        return {name: getattr(self._item, name) for name in self.names if hasattr(self._item, name)}

    def items(self) -> list[Any]:
        return list(self._present().values())

    def remember(self) -> Callable[[], None]:
        before = self._present()

        def restore() -> None:
            for name, value in self._present().items():
                if name not in before:
                    object.__delattr__(self._item, name)
                elif value is not before[name]:
                    object.__setattr__(self._item, name, before[name])
            for name in before.keys() - self._present().keys():
                object.__setattr__(self._item, name, before[name])

        return restore

    def replace(self, change: Change) -> None:
        for name, value in self._present().items():
            new = changed(value, change)
            if new is not value:
                object.__setattr__(self._item, name, new)


Holder = Mapped | Listed | Collected | Cell | Named | Slots
CONTAINERS: dict[type, Callable[[Any], Holder]] = {
    dict: Mapped,
    list: Listed,
    collections.deque: Listed,
    set: Collected,
}
