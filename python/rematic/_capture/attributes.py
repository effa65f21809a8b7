"""When modules let go of what they have kept from the previous step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from rematic._model.trees import tensors_in

from .recorder import Recorder

# What modules have of their own: no attribute there is set by a name.
_INTERNAL = frozenset(vars(nn.Module())) - {"_buffers"}


class AttributeWatch:
    """Notes when attributes of modules are first replaced in a step: what the previous step had left there goes then."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._model = model
        self._recorder = recorder
        # Where in the events, by the module and the attribute's name.
        self._replaced: dict[tuple[int, str], int] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it is entered, changes of attributes are noted."""
        set_attribute, delete_attribute = nn.Module.__setattr__, nn.Module.__delattr__
        replaced, events = self._replaced, self._recorder.events

        def set_noted(module: nn.Module, name: str, value: Any) -> None:
            replaced.setdefault((id(module), name), len(events))
            set_attribute(module, name, value)

        def delete_noted(module: nn.Module, name: str) -> None:
            replaced.setdefault((id(module), name), len(events))
            delete_attribute(module, name)

        nn.Module.__setattr__ = set_noted  # type: ignore[method-assign, assignment]
        nn.Module.__delattr__ = delete_noted  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign]
            nn.Module.__delattr__ = delete_attribute  # type: ignore[method-assign]

    def rows(self, waiting: dict[int, set[int]]) -> dict[int, int]:
        """The storages that attributes hold now which the step has set, with the last event at which one was replaced.
        `waiting` are those that operators still hold for backward."""
        found: dict[int, int] = {}
        for module in self._model.modules():
            for name, value in self._attributes(module):
                at = self._replaced.get((id(module), name))
                if at is not None:
                    for row in rows_of(value, self._recorder, waiting):
                        found[row] = max(at, found.get(row, 0))
        return found

    def _attributes(self, module: nn.Module) -> Iterator[tuple[str, Any]]:
        yield from (item for item in vars(module).items() if item[0] not in _INTERNAL)
        yield from module._buffers.items()


def rows_of(value: Any, recorder: Recorder, waiting: dict[int, set[int]]) -> set[int]:
    """The storages that a value holds: of the tensors in it, and of those that wait in their graphs for a backward."""
    rows: set[int] = set()
    nodes: list[Any] = []
    for tensor in tensors_in(value):
        row = recorder.row_of(tensor)
        if row is not None:
            rows.add(row)
        if waiting and tensor.grad_fn is not None:
            nodes.append(tensor.grad_fn)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        op = recorder.op_of(node)
        if op is not None:
            rows |= waiting.get(op, set())
        following = {other for other, _ in node.next_functions if other is not None} - seen
        seen |= following
        nodes += following
    return rows
