"""Writes down one training step while it runs on the meta device.

Three things are watched, each where it happens:

* a dispatch mode sees every operator, with its inputs and outputs;
* weak references to storages see when the last ordinary reference goes;
* saved-tensor hooks see what autograd saves and lets go of. What they hand to autograd holds no memory: when backward
  asks for a saved tensor it gets a fresh one of the same layout, which counts as the original's storage. So ordinary
  lifetimes and autograd's holds are seen apart, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rematic._model.collectives import waited
from rematic._model.storages import StorageRef
from rematic._model.trees import tensors_in
from rematic._model.wrapped import has_spread, has_wrapped, inner, is_imagined, like

from .calls import Calls
from .cudnn import assume_reserve
from .errors import CaptureError
from .lengths import LENGTHS, with_lengths
from .nodes import Nodes
from .operators import (
    BACKWARD,
    CATEGORIES,
    CLONE,
    DETACH,
    DTYPES,
    FLASH,
    FLASH_DROPOUT,
    FORWARD,
    LIFT_FRESH,
    OPTIMIZER,
    TO_COPY,
    Facts,
    name_of,
)
from .optimizers import assume_number, assume_read
from .references import FreshRef, Saved
from .shapes import Layout, Shapes
from .values import Values
from .writers import Writers

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_autograd_node: Callable[[], Any] = torch._C._current_autograd_node


class Recorder(Calls):
    """The dispatch mode. Its lists are the tables of the trace format."""

    def __init__(self, counts_host: bool = False, values: Values | None = None) -> None:
        super().__init__()
        # Whether real tensors, on the CPU, lie in the same memory as those of the step.
        self._counts_host = counts_host
        # Numbers read inside a module or the optimizer steer the step; elsewhere they are logged.
        self.values = Values() if values is None else values
        self.values.inside_model = lambda: bool(self.call_stack) or self.in_optimizer
        self.values.is_on_cpu, self.values.sees = counts_host, self.see
        self.values.is_counting = lambda: not self.in_optimizer
        self._shapes = Shapes(self.values)
        self.names: list[str] = []
        self.layouts: list[list[Any]] = []
        self.storages: list[list[Any]] = []
        self.ops: list[dict[str, Any]] = []
        # The optimizer steps.
        self.in_optimizer = False
        # The captured model's optimizer has stepped, and the model's forward has not begun since.
        self.stepped = False
        # What the operator that runs now is, for errors.
        self.running: Any = None

        self._layout_rows: dict[Layout, int] = {}
        self._facts: dict[Any, Facts] = {}
        self.watched: dict[int, StorageRef] = {}
        self._drops: dict[int, int] = {}

        self.writers = Writers(self)
        self._nodes = Nodes(self._hold, self.ops)
        self._holds: dict[int, int] = {}
        self._reads: dict[int, int] = {}
        self._returned: int | None = None
        self._returns: dict[int, int] = {}

        # Whether tensors of the step, real ones, and any that the step has not met are among an operator's arguments.
        self._natives = self._strangers = self._foreigners = False
        # Whether an operator on parts of wholes is about to run on what is inside.
        self._descends = False

    # ---- tensors ----

    def layout(self, tensor: Tensor) -> int:
        """The row of the tensor's layout."""
        tensor = inner(tensor)
        key = (tensor.dtype, tensor.shape, tensor.stride())
        row = self._layout_rows.get(key)
        return self._add_layout(key) if row is None else row

    def _add_layout(self, key: Layout) -> int:
        row = self._layout_rows[key] = len(self.layouts)
        dtype, shape, strides = key
        self.layouts.append([DTYPES.get(dtype, f"{dtype}"), list(shape), list(strides)])
        return row

    def storage_before_step(self, tensor: Tensor, category: str) -> int:
        """The row of the storage of a tensor that exists before the step."""
        storage = inner(tensor).untyped_storage()
        ref = self.watched.get(storage._cdata)
        return self.add_storage(storage, category, None) if ref is None else ref.row

    def add_previous(self, size: int) -> int:
        """A storage that the previous step has left."""
        self.storages.append([size, "activation", None])
        return len(self.storages) - 1

    def add_storage(self, storage: torch.UntypedStorage, category: str, birth: int | None) -> int:
        row = len(self.storages)
        self.storages.append([storage.nbytes(), category, birth, *self.words(storage, birth)])
        self.watch(StorageRef(storage, self._dropped), storage, row)
        return row

    def is_alive(self, row: int) -> bool:
        """Whether an ordinary reference to the storage is left."""
        return row not in self._drops

    def unreleased(self) -> dict[int, set[int]]:
        """Storages that autograd still holds, by operator: backward has not gone through this part of the graph."""
        return {op: {row for row, _ in self.ops[op]["saves"]} for op in self._holds}

    def op_of(self, node: Any) -> int | None:
        """The operator that a node of the graph differentiates."""
        return self._nodes.op(node._sequence_nr())

    def _dropped(self, ref: StorageRef) -> None:
        del self.watched[ref.address]
        self._drop(ref.row)

    def _drop(self, row: int) -> None:
        self._drops[row] = len(self.events)
        if not self._closed:
            self.events.append({"drop": row})

    def _fresh_dropped(self, ref: FreshRef) -> None:
        del self.watched[ref.address]
        op, row = ref.op, ref.row
        self._reads[op] -= 1
        if op not in self._holds:
            # Somebody kept what autograd has let go of: an ordinary reference after all.
            earlier = self._drops.pop(row, None)
            if earlier is not None and earlier < len(self.events):
                self.events[earlier] = None
                self._drop(row)
        elif not self._reads[op]:
            self._returned = op

    # ---- autograd ----

    def pack(self, tensor: Tensor) -> Any:
        """Autograd saves a tensor."""
        with torch._C.DisableTorchFunction():
            return self._packed(tensor)

    def _packed(self, tensor: Tensor) -> Any:
        whole, tensor = tensor, inner(tensor)
        if not tensor.is_meta or self._closed:
            return whole if self._closed else self._nodes.waited_on_host(whole)
        number = self._nodes.saving()
        row = self.watched.get(tensor.untyped_storage()._cdata)
        row_id = self.storage_before_step(tensor, "other") if row is None else row.row
        layout = (tensor.dtype, tensor.shape, tensor.stride())
        op = self._nodes.op(number)
        if op is not None and op < (self.storages[row_id][2] or 0):
            # The forward of an `autograd.Function` saves, when it is over, what its later operators have made.
            op = len(self.ops) - 1
        requires_grad = whole.requires_grad
        wrap = like(whole)
        if op is None:
            saved = Saved(self, -1, row_id, layout, requires_grad, False)
            saved.wrap = wrap
            self._note(saved, tensor)
            self._nodes.wait(number, saved)
            return saved
        node = whole.grad_fn if requires_grad else None
        is_output = node is not None and node._sequence_nr() == number
        del node
        saved = Saved(self, op, row_id, layout, requires_grad, is_output)
        saved.wrap = wrap
        self._note(saved, tensor)
        self._hold(op, saved)
        if is_output:
            # Without hooks, autograd detaches an output that it saves.
            tensor_row = [row_id, self.layout(tensor)]
            self._record_detach(tensor_row)
        return saved

    def _note(self, saved: Saved, tensor: Tensor) -> None:
        saved.content = self.values.content_of(tensor.untyped_storage())
        self._quiet = True
        try:
            saved.watch(tensor)
        finally:
            self._quiet = False

    def _hold(self, op: int, saved: Saved) -> None:
        saved.op = op
        self._holds[op] = self._holds.get(op, 0) + 1
        row = self._layout_rows.get(saved.layout)
        row = self._add_layout(saved.layout) if row is None else row
        self.ops[op].setdefault("saves", []).append([saved.row, row])

    def let_go(self, saved: Saved) -> None:
        """Autograd lets go of a saved tensor."""
        op = saved.op
        if op < 0:
            return
        left = self._holds[op] - 1
        if left:
            self._holds[op] = left
            return
        del self._holds[op]
        if self._returned == op:
            self._returned = None
        if not self._closed:
            self.events.append({"unsave": op})

    def unpack(self, saved: Any) -> Tensor:
        """Backward reads a saved tensor."""
        if not isinstance(saved, Saved):
            return saved
        with torch._C.DisableTorchFunction():
            return self._unpacked(saved)

    def _unpacked(self, saved: Saved) -> Tensor:
        self.writers.check(saved)
        dtype, shape, strides = saved.layout
        self._quiet = True
        try:
            fresh = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        finally:
            self._quiet = False
        storage = fresh.untyped_storage()
        self.values.hold(storage, saved.content)
        ref = FreshRef(storage, self._fresh_dropped)
        ref.op = saved.op
        ref.detaches = saved.requires_grad
        ref.is_output = saved.is_output
        self.watch(ref, storage, saved.row)
        self._reads[saved.op] = self._reads.get(saved.op, 0) + 1
        if self._returned == saved.op:
            self._returned = None
        early = self._returns.pop(saved.op, None)
        if early is not None:
            self.events[early] = None
        return fresh if saved.wrap is None else self._wrapped(saved.wrap, fresh)

    def _wrapped(self, wrap: Callable[[Tensor], Tensor], fresh: Tensor) -> Tensor:
        self._quiet = True
        try:
            return wrap(fresh)
        finally:
            self._quiet = False

    # ---- operators ----

    def _facts_of(self, func: Any) -> Facts:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = Facts(func, len(self.names))
            self.names.append(name_of(func))
        return facts

    def _describe(self, value: Any, rows: list[list[int]]) -> None:
        """Adds the tensors on the device among some arguments."""
        for item in value:
            if isinstance(item, Tensor):
                if item.is_meta:
                    self._natives = True
                else:
                    self._foreigners = True
                    self._strangers |= item.dim() > 0
                if item.is_meta or self._counts_host:
                    storage = item.untyped_storage()
                    ref = self.watched.get(storage._cdata)
                    if ref is None:
                        self._foreigners = True
                        if item.is_meta:
                            self.values.meet(storage)
                        row = self.add_storage(storage, self._expected.get(storage._cdata, "other"), None)
                    else:
                        row = ref.row
                    key = (item.dtype, item.shape, item.stride())
                    layout = self._layout_rows.get(key)
                    rows.append([row, self._add_layout(key) if layout is None else layout])
            elif isinstance(item, (list, tuple)):
                self._describe(item, rows)

    def _describe_results(self, results: Any, op: int, category: str, rows: list[list[int]]) -> bool:
        """Adds the tensors on the device among an operator's results; says whether any is on the host."""
        on_host = False
        for result in results:
            if isinstance(result, Tensor):
                if not result.is_meta and not self._counts_host:
                    on_host = True
                    continue
                if result.layout is not torch.strided:
                    raise CaptureError(
                        f"`{self.running}` makes a tensor with layout {result.layout}, whose memory cannot be "
                        "followed; use dense tensors (for embeddings: sparse=False)"
                    )
                storage = result.untyped_storage()
                ref = self.watched.get(storage._cdata)
                row = self.add_storage(storage, category, op) if ref is None else ref.row
                key = (result.dtype, result.shape, result.stride())
                layout = self._layout_rows.get(key)
                rows.append([row, self._add_layout(key) if layout is None else layout])
            elif isinstance(result, (tuple, list)):
                on_host |= self._describe_results(result, op, category, rows)
        return on_host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet or self._closed:
            return func(*args, **kwargs)
        if types and has_wrapped(types):
            return self._descended(func, types, args, kwargs)
        if self._nodes.spread is not None and is_imagined():
            return func(*args, **kwargs)
        # Backward runs in the modes that watch what Python does; what is asked about tensors here is none of that.
        with torch._C.DisableTorchFunction():
            return self._dispatched(func, args, kwargs)

    def _descended(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator on tensors that have others inside; what it does to those comes here."""
        if self._descends or not has_spread(types):
            self._descends = False
            return NotImplemented
        with self._nodes.around(func, args[0] if func is CLONE else None), self:
            self._descends = True
            try:
                return func(*args, **kwargs)
            finally:
                self._descends = False

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is DETACH:
            ref = self.watched.get(args[0].untyped_storage()._cdata)
            if type(ref) is FreshRef and ref.detaches:
                return self._detach_saved(ref, args[0])
        if func is TO_COPY and self._counts_host:
            twin = self._stays(args[0], kwargs)
            if twin is not None:
                return twin
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts_of(func)
        if not facts.recorded:
            return func(*args, **kwargs)
        if facts.waits:
            return waited(func, args)
        if facts.is_composite and torch.is_inference_mode_enabled():
            # Elsewhere autograd takes it apart before it comes here.
            with self:
                return func.decompose(*args, **kwargs)
        outer, self.running = self.running, func
        self._natives = self._strangers = self._foreigners = False
        inputs: list[list[int]] = []
        if func is not LIFT_FRESH or args[0].untyped_storage()._cdata in self.watched:
            self._describe(args, inputs)
        if kwargs and not facts.packs:
            self._describe(kwargs.values(), inputs)
        if self._foreigners and self.replica is not None:
            self.replica.check_foreigners(func, facts, args, kwargs)
        if self._foreigners and (self._natives or self._changes_guarded(facts, args, kwargs)):
            args, kwargs = self._moved(func, facts, args, kwargs)
            inputs.clear()
            self._describe((*args, *kwargs.values()), inputs)
        assume_reserve(self.values, func)
        if func in LENGTHS:
            args = with_lengths(self.values, func, args)
        # Until the operator is written down, it is there.
        replaced = args[0].untyped_storage() if facts.replaces else None
        if self.in_optimizer:
            assume_read(self.values, func, args)
        if facts.packs or func.namespace == "c10d":
            out = self.answered(func, args, kwargs)
        else:
            out = self._shapes.run(func, args, kwargs, inputs)
        if self.in_optimizer:
            assume_number(self.values, args, out)

        mutates: list[int] = []
        writes_view = False
        if facts.mutated_keywords:
            targets = facts.written(args, kwargs)
            written: list[list[int]] = []
            self._describe(targets, written)
            mutates = [row for row, _ in written]
            self.writers.note(mutates)
            writes_view = torch.is_grad_enabled() and any(tensor._is_view() for tensor in tensors_in(targets))
        outputs: list[list[int]] = []
        known = len(self.storages)
        results = out if isinstance(out, (tuple, list)) else (out,)
        on_host = self._describe_results(results, len(self.ops), CATEGORIES[self.phase()], outputs)
        self.see_beside(on_host, outputs)
        flags = facts.flags
        if func is FLASH and len(args) > FLASH_DROPOUT and args[FLASH_DROPOUT] > 0:
            flags = ["random"]
        if not inputs and not outputs:
            flags = [*flags, "host"]
        elif outputs and not mutates and not on_host and known == len(self.storages):
            flags = [*flags, "view"]
        self._record(facts, flags, inputs, outputs, mutates)
        if facts.communicates:
            self.ops[-1]["collective"] = self.collective(func, args, kwargs, out)
        if self._nodes.spread is not None:
            self._nodes.inside(func, len(self.ops) - 1)
        else:
            self._nodes.ran(len(self.ops) - 1, writes_view, args[0] if func is CLONE else None)
        self.running = outer
        del replaced
        return out

    def _detach_saved(self, ref: FreshRef, tensor: Tensor) -> Tensor:
        """What a hook hands to autograd is detached; without hooks, only outputs are."""
        ref.detaches = False
        out = DETACH(tensor)
        if ref.is_output:
            self._record_detach([ref.row, self.layout(out)])
        return out

    def _record_detach(self, row: list[int]) -> None:
        self._record(self._facts_of(DETACH), ["view"], [row], [row], [])
        self._nodes.ran(len(self.ops) - 1, False, None)

    def phase(self) -> str:
        """The phase that an operator would belong to now."""
        if self.in_optimizer:
            return OPTIMIZER
        if self._phase_aside is not None:
            return self._phase_aside
        if _graph_task() != -1:
            return BACKWARD
        return OPTIMIZER if self.after_optimizer else FORWARD

    def _record(
        self,
        facts: Facts,
        flags: list[str],
        inputs: list[list[int]],
        outputs: list[list[int]],
        mutates: list[int],
    ) -> None:
        op = len(self.ops)
        phase = self.phase()
        row: dict[str, Any] = {"name": facts.name, "phase": phase}
        differentiates: int | None = None
        if self._is_aside:
            pass
        elif phase is FORWARD:
            if self.call_stack:
                row["call"] = self.call_stack[-1]
        elif phase is BACKWARD:
            node = _autograd_node()
            if node is not None:
                differentiates = self._nodes.op(node._sequence_nr())
                if differentiates is not None:
                    call = self.ops[differentiates].get("call")
                    if call is not None:
                        row["call"] = call
                    row["differentiates"] = differentiates
        if flags:
            row["flags"] = flags
        if self.streams.current:
            row["stream"] = self.streams.current
        if mutates:
            row["mutates"] = mutates
        if inputs:
            row["inputs"] = inputs
        if outputs:
            row["outputs"] = outputs
        returned = self._returned
        if returned is not None:
            self._returned = None
            if differentiates == returned:
                self._returns[returned] = len(self.events)
                self.events.append({"return": returned})
        self.ops.append(row)
        self.events.append({"op": op})

    def close(self) -> None:
        """The step is over; what goes from now on is not part of it, and the user's tensors are let go of."""
        self._closed = True
        self.replica = None
        self._guarded.clear()
