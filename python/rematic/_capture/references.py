"""What stands where a reference to a storage would, and says when it goes."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .shapes import Layout

if TYPE_CHECKING:
    from .recorder import Recorder


class StorageRef(weakref.ref[Any]):
    """A weak reference to a storage that knows which row of the trace it is."""

    __slots__ = ("row", "address")
    row: int
    address: int


class FreshRef(StorageRef):
    """The same for the storage of a tensor that stands in for a saved one while backward reads it."""

    __slots__ = ("op", "detaches", "is_output")
    op: int
    detaches: bool
    is_output: bool


class Saved:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("recorder", "op", "row", "layout", "requires_grad", "is_output", "__weakref__")

    def __init__(self, recorder: Recorder, op: int, row: int, layout: Layout, requires_grad: bool, is_output: bool):
        self.recorder = recorder
        self.op = op
        self.row = row
        self.layout = layout
        self.requires_grad = requires_grad
        self.is_output = is_output

    def __del__(self) -> None:
        self.recorder.let_go(self)
