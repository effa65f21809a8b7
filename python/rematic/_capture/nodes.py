"""Which operator each node of autograd's graph belongs to.

Nodes are numbered in the order in which they are made. An operator's node is made right before it runs; so those that
are new when it runs are its own, but for two cases that are told apart here.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr

# Writing into a view makes two nodes after the operator has run: the base's, and the view's from then on.
_NODES_OF_A_WRITE = 2
# A flag of the trace: something of the host was saved for the operator's backward.
HOLDS = "holds"


class Nodes:
    """The nodes of one step. `hold` is told when something that was saved for a node has its operator."""

    def __init__(self, hold: Callable[[int, Any], None], rows: list[dict[str, Any]]) -> None:
        self._hold = hold
        # The operators as they are written down.
        self._rows = rows
        # Nodes without an operator so far for which a tensor of the host was saved.
        self._on_host: set[int] = set()
        self._numbered = _sequence_number()
        self._ops: dict[int, int] = {}
        self._waiting: dict[int, list[weakref.ref[Any]]] = {}
        self._wrote_view = False
        self._deferred: int | None = None
        # An operator on parts of wholes runs others on what is inside: by them, the one that stands for it.
        self.spread: Any = None
        self._stands: int | None = None
        self._main: Any = None

    @contextlib.contextmanager
    def around(self, func: Any, clones: Tensor | None) -> Iterator[None]:
        """While it is entered, an operator on parts of wholes runs others. Its node is that of the last that is the same operator
        on what is inside, or else of the last."""
        outer, self.spread, self._stands = self.spread, func, None
        try:
            yield
        finally:
            self.spread = outer
            if self._stands is not None and outer is None:
                self.ran(self._stands, False, clones)

    def inside(self, func: Any, op: int) -> None:
        """An operator has run inside of another."""
        if self._stands is None or func is self.spread or self._main is not self.spread:
            self._stands, self._main = op, func

    def op(self, number: int) -> int | None:
        """The operator of a node."""
        return self._ops.get(number)

    def saving(self) -> int:
        """The node that a tensor is saved for now."""
        return _sequence_number() - 1 if self._deferred is None else self._deferred

    def wait(self, number: int, saved: Any) -> None:
        """It was saved for a node whose operator has yet to run."""
        self._waiting.setdefault(number, []).append(weakref.ref(saved))

    def waited_on_host(self, tensor: Tensor) -> Tensor:
        """A tensor of the host is saved for the node that is made now."""
        number = self.saving()
        op = self._ops.get(number)
        if op is None:
            self._on_host.add(number)
        else:
            self._hold_on_host(op)
        return tensor

    def _hold_on_host(self, op: int) -> None:
        flags = self._rows[op].get("flags", [])
        if HOLDS not in flags:
            self._rows[op]["flags"] = [*flags, HOLDS]

    def ran(self, op: int, writes_view: bool, clones: Tensor | None) -> None:
        """Ties the nodes that were made since the last operator to this one, which clones a tensor or writes a view."""
        number = _sequence_number()
        first = self._numbered
        has_node = self._deferred is not None
        if self._deferred is not None:
            self._tie(self._deferred, op)
            self._deferred = None
        if self._wrote_view and number - first >= _NODES_OF_A_WRITE:
            for made in range(first, first + _NODES_OF_A_WRITE):
                self._tie(made, op - 1)
            first += _NODES_OF_A_WRITE
        if clones is not None and number - first > (clones.requires_grad and torch.is_grad_enabled()):
            # What an operator overwrites is copied before it runs, if its backward needs it.
            self._deferred = first
            first += 1
        for made in range(first, number):
            self._tie(made, op)
        self._numbered = number
        # Without a node of its own it has no history to write.
        self._wrote_view = writes_view and (has_node or number > first)

    def _tie(self, number: int, op: int) -> None:
        self._ops[number] = op
        if number in self._on_host:
            self._on_host.remove(number)
            self._hold_on_host(op)
        for waiting in self._waiting.pop(number, ()):
            saved = waiting()
            if saved is not None:
                self._hold(op, saved)
