"""What really happens in a training step on the CPU: its peak, as the allocator reports it, and its operators."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._capture.trees import tensors_in

Step = Callable[[], None]
MARK = "the step"


def resident(*values: Any) -> int:
    """Bytes of the storages among some values."""
    storages = [tensor.untyped_storage() for tensor in tensors_in(values)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def peaks(step: Step, model: nn.Module, inputs: Any, kernels: set[str]) -> tuple[int, int]:
    """The highest bytes in use in the second of two steps: all that the allocator gives out; and without what the
    kernels of operators take and give back while they run, which no tensor of the step ever holds.

    The optimizer must not have state yet.
    """
    total = resident(list(model.parameters()), list(model.buffers()), inputs)
    gc.collect()
    gc.disable()
    try:
        with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiled:
            step()
            with record_function(MARK):
                step()
    finally:
        gc.enable()
    events = profiled.profiler.kineto_results.events()
    start = next(event.start_ns() for event in events if event.name() == MARK)
    # Inside a kernel others may run; the outermost counts.
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.name().removeprefix("aten::") in kernels
    )
    moves = sorted((event.start_ns(), n, event.nbytes()) for n, event in enumerate(events) if event.name() == "[memory]")
    highest = settled = ends = 0
    at = 0
    inside: int | None = None
    for time, _, size in moves:
        if inside is not None and time > ends:
            settled, inside = max(settled, inside), None
        while at < len(spans) and spans[at][0] <= time:
            ends = max(ends, spans[at][1])
            at += 1
        total += size
        if time < start:
            continue
        highest = max(highest, total)
        if time <= ends:
            inside = total
        else:
            settled = max(settled, total)
    return highest, max(settled, inside or 0)


class Ran(TorchDispatchMode):
    """Writes down the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("profiler", "prim"):
            self.names.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))
