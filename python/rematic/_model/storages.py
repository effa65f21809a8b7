"""Storages, and when they go."""

from __future__ import annotations

import weakref
from typing import Any


class StorageRef(weakref.ref[Any]):
    """A weak reference to a storage that knows which row of a table it is."""

    __slots__ = ("row", "address")
    row: int
    address: int
