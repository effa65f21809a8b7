"""What torch's own MemTracker says about a step, without a GPU: the reference for captured traces."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed._tools import mem_tracker as mt
from torch.distributed._tools import mod_tracker

from reality import clear_caches
from rematic._capture.replica import Replica
from rematic._capture.routing import as_on
from rematic._capture.values import Values
from rematic._model.trees import tensors_in

CUDA_BLOCK = 512


class StepTracker(mt.MemTracker):
    """MemTracker that also writes down the total after every operator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.timeline: list[tuple[str, int]] | None = None

    def start(self) -> None:
        """Begins to write down, and forgets what earlier steps reached."""
        self.timeline = []
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: snapshot["Total"] for device, snapshot in self._peak_mem_snap.items()}

    def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> Any:
        # It tries to put a hook on frozen parameters too, which fails.
        for parameter in module.parameters():
            if not parameter.requires_grad and parameter not in self._param_to_grad_hook_handles:
                self._param_to_grad_hook_handles[parameter] = (mock.Mock(), mock.Mock())
        return super()._track_module_params_and_buffers(module, install_grad_hooks)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.timeline is not None and func.namespace not in ("profiler", "prim"):
            total = self._curr_mem_snap.get(self.device, {}).get("Total", 0)
            self.timeline.append((str(func).removeprefix("aten."), total))
        return out


@contextlib.contextmanager
def _blocks(block: int) -> Iterator[None]:
    def rounded(self: Any) -> int:
        return math.ceil(self.size * self.element_size / block) * block

    gc.collect()
    gc.disable()
    try:
        with mock.patch.object(mt._WeakRefInfo, "_calculate_mem_consumed", rounded):
            yield
    finally:
        gc.enable()


def _no_hook(tensors: Any, fn: Any, *, mode: str = "all") -> None:
    """In place of `register_multi_grad_hook`, which keeps gradients of a module's inputs until the last of them is
    there, and graphs that nobody uses, as no step without MemTracker does. Only snapshots of modules need it."""


def _kept(model: nn.Module) -> list[Tensor]:
    """Tensors that modules keep and that are no parameters or buffers, as tables of anchors: they take memory too."""
    held = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept = {id(tensor): tensor for part in model.modules() for tensor in tensors_in(vars(part))}
    return [tensor for key, tensor in kept.items() if key not in held]


def track(
    build: Any,
    device: str,
    loss_of: Any,
    make_optimizer: Any,
    *,
    with_modules: bool = True,
    real: bool = False,
    steps: int = 2,
) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """The peak by category, and the total after every operator, of the last step: on the meta device with the
    operators of `device`, or for real on the CPU."""
    model, args, kwargs = build("cpu" if real else "meta")
    clear_caches()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_blocks(CUDA_BLOCK if device == "cuda" else 1))
        if not with_modules:
            stack.enter_context(mock.patch.object(mod_tracker, "register_multi_grad_hook", _no_hook))
        if not real:
            replica = Replica()
            args, kwargs = replica.inputs(args, kwargs)
            values = Values()
            for tensor, value in replica.values:
                values.know(tensor, value)
            stack.enter_context(as_on(device))
            stack.enter_context(values)
        optimizer = make_optimizer(model.parameters())
        tracker = StepTracker(torch.device("cpu" if real else "meta"))
        tracker.track_external(model, optimizer, *tensors_in((args, kwargs)), *_kept(model))
        stack.enter_context(tracker)
        for step in range(steps):
            if step == steps - 1:
                tracker.reset_mod_stats()
                gc.collect()
                tracker.start()
            output = model(*args, **kwargs)
            loss_of(output).backward()
            optimizer.step()
            optimizer.zero_grad()
        snapshot = tracker.get_tracker_snapshot("peak")[tracker.device]
    assert tracker.timeline is not None
    return {getattr(key, "value", key): size for key, size in snapshot.items()}, tracker.timeline
