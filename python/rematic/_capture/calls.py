"""What the recorder knows of the calls of modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .traffic import Traffic


class Calls(Traffic):
    """The part of the recorder that writes them down."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.events: list[dict[str, Any] | None] = []
        self.call_stack: list[int] = []
        # The optimizer has stepped, and no forward has begun since.
        self.after_optimizer = False
        # The step is over.
        self._closed = False

    def enter(self, module: int, inputs: list[Tensor], keywords: list[Tensor]) -> int:
        """A module's forward begins."""
        self.after_optimizer = False
        call = len(self.calls)
        row: dict[str, Any] = {"module": module}
        if inputs:
            row["inputs"] = [self._row_or_add(tensor) for tensor in inputs]
        if keywords:
            row["keywords"] = [self._row_or_add(tensor) for tensor in keywords]
        self.calls.append(row)
        self.events.append({"enter": call})
        self.call_stack.append(call)
        return call

    def _row_or_add(self, tensor: Tensor) -> int:
        row = self.row_of(tensor)
        return self.storage_before_step(tensor, "other") if row is None else row

    def exit(self, call: int, outputs: list[Tensor]) -> None:
        """It returns."""
        self.call_stack.pop()
        if outputs:
            self.calls[call]["outputs"] = [self._row_or_add(tensor) for tensor in outputs]
        self.events.append({"exit": call})

    def recategorize(self, tensor: Tensor, category: str) -> None:
        """From now on the tensor's storage counts as another category."""
        row = self.row_of(tensor)
        if row is not None and not self._closed:
            self.events.append({"recategorize": [row, category]})
