"""Real tensors among those of a step, and their twins on the device.

A batch that the step's function holds, an average of weights, a number that it looks at: they lie on the CPU, where nothing of
theirs may change, and the step's operators want them on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._model.storages import StorageRef
from rematic._model.trees import map_tensors, tensors_in
from rematic._model.wrapped import inner

from .operators import ACROSS_DEVICES, Facts
from .replica import Replica
from .values import Values

# A word of the trace, about storages.
SEEN = "seen"


class Twins(TorchDispatchMode):
    """What the recorder knows of real tensors."""

    values: Values
    storages: list[list[Any]]
    watched: dict[int, StorageRef]
    _strangers: bool

    def __init__(self) -> None:
        super().__init__()
        self._quiet = False
        # What storages of other networks that the step reaches hold; and those of tensors that it must not change.
        self._expected: dict[int, str] = {}
        self._guarded: set[int] = set()
        # What stands for the user's tensors. Without it, they are taken as they are.
        self.replica: Replica | None = None

    def watch(self, ref: StorageRef, storage: torch.UntypedStorage, row: int) -> None:
        ref.row = row
        ref.address = storage._cdata
        self.watched[ref.address] = ref

    def row_of(self, tensor: Tensor) -> int | None:
        """The row of a tensor's storage, if the trace knows it."""
        ref = self.watched.get(inner(tensor).untyped_storage()._cdata)
        return None if ref is None else ref.row

    def words(self, storage: torch.UntypedStorage, birth: int | None) -> list[str]:
        """What is to be said of a new storage: what the step makes on the host may be read by more than operators."""
        return [SEEN] if birth is not None and storage.device.type != "meta" else []

    def see(self, tensor: Tensor) -> None:
        """More than operators reads a tensor: Python, or code that looks at memory."""
        row = self.row_of(tensor) if tensor.layout is torch.strided else None
        if row is not None:
            self._see(row)

    def see_beside(self, on_host: bool, made: Iterable[list[int]]) -> None:
        """An operator has made this; if also something on the host, that is not followed, and whoever reads it needs the operator."""
        for row, _ in made if on_host else ():
            self._see(row)

    def _see(self, row: int) -> None:
        storage = self.storages[row]
        if storage[2] is not None and SEEN not in storage:
            storage.append(SEEN)

    def storage_before_step(self, tensor: Tensor, category: str) -> int:
        """The row of the storage of a tensor that exists before the step."""
        raise NotImplementedError

    def _dropped(self, ref: StorageRef) -> None:
        raise NotImplementedError

    def expect(self, outside: Iterable[Tensor], guarded: Iterable[Tensor]) -> None:
        """Tensors of other networks, which count once they are met; and the user's own, which stay as they are."""
        for tensor in outside:
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            self._expected.setdefault(inner(tensor).untyped_storage()._cdata, kind)
        self._guarded = {inner(tensor).untyped_storage()._cdata for tensor in guarded if tensor.layout is torch.strided}

    def on_device(self, tensor: Tensor) -> Tensor:
        """For a real tensor among those of the step (a batch that the step's function holds): one on the device."""
        return tensor if tensor.is_meta or not tensor.dim() else self._stand_in(tensor)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if self.replica is None or tensor.is_meta:
            return tensor
        real = self.watched.get(tensor.untyped_storage()._cdata)
        if real is not None and self.storages[real.row][2] is not None:
            return self._twin(tensor, real.row)  # the step has made it, and may let go of it
        self._quiet = True
        try:
            made = self.replica.tensor(tensor)
            if not isinstance(tensor, nn.Parameter):
                self.values.know(made, tensor)
        finally:
            self._quiet = False
        storage = made.untyped_storage()
        if real is not None and storage._cdata not in self.watched:
            # On the CPU both lie in the memory that is counted, and only one is there.
            self.watch(StorageRef(storage, self._dropped), storage, real.row)
        return made

    def _changes_guarded(self, facts: Facts, args: Any, kwargs: Any) -> bool:
        if not facts.mutated_keywords:
            return False
        written = (tensor for tensor in tensors_in(facts.written(args, kwargs)) if not tensor.is_meta)
        return any(tensor.untyped_storage()._cdata in self._guarded for tensor in written)

    def _stays(self, tensor: Tensor, options: dict[str, Any]) -> Tensor | None:
        """A tensor that is sent from the CPU to the device or back where the CPU is the device, so that nothing moves:
        its twin on the other side, if its value is known."""
        device, dtype = options.get("device"), options.get("dtype")
        if device is None or dtype not in (None, tensor.dtype):
            return None
        if device.type != ("cpu" if tensor.is_meta else "meta"):
            return None
        row = self.row_of(tensor)
        if row is None:
            # A number that TorchScript makes is made unseen.
            if tensor.is_meta or tensor.dim():
                return None
            row = self.storage_before_step(tensor, "other")
        return self._twin(tensor, row) if self.values.is_known(tensor) else None

    def _twin(self, tensor: Tensor, row: int) -> Tensor:
        """The same tensor on the other side, in the same memory."""
        self._quiet = True
        try:
            if tensor.is_meta:
                twin: Tensor = self.values.need(tensor, "copy").clone()
            else:
                twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
                if not isinstance(tensor, nn.Parameter):
                    self.values.have(twin, tensor.clone())
        finally:
            self._quiet = False
        self._share(twin, tensor, row)
        self._see(row)
        return twin

    def _share(self, twin: Tensor, tensor: Tensor, row: int) -> None:
        """The memory is there as long as one of them lives."""
        storage = twin.untyped_storage()
        # The tensor itself may go, and leave a view of it behind.
        storage._rematic_origin = tensor.untyped_storage()  # type: ignore[attr-defined]
        self.watch(StorageRef(storage, self.forget), storage, row)

    def bring(self, tensor: Tensor) -> None:
        """Turns a real tensor that the step has made into one on the device, in its place."""
        if tensor.untyped_storage()._cdata in self._guarded or not tensor.is_leaf:
            return
        self._quiet = True
        try:
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            row = self.row_of(tensor)
            torch.utils.swap_tensors(tensor, twin)
        finally:
            self._quiet = False
        if row is not None:
            self._share(tensor, twin, row)

    def forget(self, ref: StorageRef) -> None:
        del self.watched[ref.address]

    def _moved(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of an operator on tensors of the step and real ones, with the real ones on the device."""
        # What tensors of the step are written to, as an average of weights or a scale, would lie beside them.
        args = tuple(
            map_tensors(item, self._stand_in) if position in facts.mutated else item
            for position, item in enumerate(args)
        )
        if func in ACROSS_DEVICES or not self._strangers:
            return args, kwargs
        return map_tensors((args, kwargs), self.on_device)
