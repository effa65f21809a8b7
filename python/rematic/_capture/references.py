"""What stands where a reference to a storage would, and says when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rematic._model.storages import StorageRef

from .shapes import Layout

if TYPE_CHECKING:
    from .recorder import Recorder


_NOTHING = torch.empty(0, device="meta")


class FreshRef(StorageRef):
    """The same for the storage of a tensor that stands in for a saved one while backward reads it."""

    __slots__ = ("op", "detaches", "is_output")
    op: int
    detaches: bool
    is_output: bool


class Saved:
    """What autograd holds in place of a saved tensor."""

    __slots__ = (
        "recorder", "op", "row", "layout", "requires_grad", "is_output", "content", "_probe", "_version", "__weakref__",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, op: int, row: int, layout: Layout, requires_grad: bool, is_output: bool):
        self.recorder = recorder
        self.op = op
        self.row = row
        self.layout = layout
        self.requires_grad = requires_grad
        self.is_output = is_output
        # What the storage held when it was saved, for functions that look at it in their backward.
        self.content: Any = None
        self._probe: torch.Tensor | None = None
        self._version = 0

    def watch(self, tensor: torch.Tensor) -> None:
        """Notes how often the tensor was written, and holds what counts that, without its storage."""
        # What is shown conjugated or negated cannot be parted from its storage.
        if not (tensor.is_inference() or tensor.is_conj() or tensor.is_neg()):
            self._probe = tensor.detach()
            self._version = self._probe._version
            self._probe.data = _NOTHING

    @property
    def writes_since(self) -> int:
        """How often the tensor was written since it was saved, as torch counts it."""
        return 0 if self._probe is None else self._probe._version - self._version

    def __del__(self) -> None:
        self.recorder.let_go(self)
