"""What stands where a reference to a storage would, and says when it goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpoints

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
        "recorder", "op", "row", "layout", "requires_grad", "is_output", "content", "wrap", "_probe", "_version",
        "__weakref__",
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
        # What was around the tensor.
        self.wrap: Callable[[Tensor], Tensor] | None = None
        self._probe: Tensor | None = None
        self._version = 0

    def watch(self, tensor: Tensor) -> None:
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


@contextlib.contextmanager
def saving(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """While it is entered, what autograd saves is seen."""
    original: Any = getattr(checkpoints, "_make_saved_tensor", None)

    def plain(tensor: Tensor, is_output: bool) -> Any:
        # A checkpoint keeps its inputs in saved tensors of no operator: an ordinary reference.
        top = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if top is None or top[0] != pack:
            return original(tensor, is_output=is_output)
        torch._C._autograd._pop_saved_tensors_default_hooks()
        try:
            return original(tensor, is_output=is_output)
        finally:
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)

    with contextlib.ExitStack() as stack:
        if original is not None:
            stack.enter_context(mock.patch.object(checkpoints, "_make_saved_tensor", plain))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, unpack))
        yield
