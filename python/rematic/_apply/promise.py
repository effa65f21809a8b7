"""Whether a step under a plan takes what was promised: measured once, in the second step, when the optimizer has its state.

On every device, what the model's forward has made and what is left of it after its last operator is counted from the tensors
themselves, and compared with the replay's figure for that moment. On CUDA the allocator tells the highest use of the whole step
too.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._core import Plan
from rematic._model.storages import StorageRef
from rematic._model.trees import tensors_in
from rematic._warning import warn

# A share of the promise, and bytes: what is above it by less is within it.
SLACK, SMALL = 0.01, 4096
CUDA_BLOCK = 512

_listening: weakref.WeakSet[Promise] = weakref.WeakSet()
_hooks: list[Any] = []


class Promise:
    """The promise of a plan, until it has been checked."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        # What CUDA's allocator is to count: kernels take memory for themselves, which matters beside a small model.
        self.allocated = max(plan.peak, (plan.memory or {}).get("allocated_bytes", 0))
        # Variants leave different amounts, and which one runs is known too late. Nothing is left where training enters beside the
        # model's forward.
        self.after_forward = plan.forward_bytes or None if len(plan.variants) == 1 else None
        self._stepped = False
        self._measured: _Peak | None = None
        # Sharded parameters are gathered into memory that the prediction does not have.
        self._is_open = plan.world_size == 1
        if self._is_open:
            self._listen()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_measured": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._is_open:
            self._listen()

    def _listen(self) -> None:
        _listening.add(self)
        if not _hooks:
            _hooks.append(register_optimizer_step_post_hook(_after_step))

    @contextlib.contextmanager
    def watching(self, inputs: Any) -> Iterator[None]:
        """The first forward of a step runs meanwhile."""
        if not self._is_open or not self._stepped or torch.compiler.is_compiling():
            yield
            return
        device = next((tensor.device for tensor in self.model.parameters()), torch.device("cpu"))
        self._measured = _Peak(device, self.model, inputs) if device.type == "cuda" else None
        tally = Tally(device.type)
        with tally:
            yield
        self._is_open = self._measured is not None
        if self.after_forward is not None and _exceeds(tally.last, self.after_forward):
            self._is_open = False
            _warn("After its forward the step has", tally.last, self.after_forward)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer of the model has stepped."""
        self._stepped = True
        measured, self._measured = self._measured, None
        highest = None if measured is None else measured.highest(optimizer)
        if highest is not None:
            self._is_open = False
            if _exceeds(highest, self.allocated):
                _warn("The step took", highest, self.allocated)
        if not self._is_open:
            _listening.discard(self)


class Tally(TorchDispatchMode):
    """Counts the bytes of all storages that operators make while it is entered, as long as they are there."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._now = 0
        # After the last operator.
        self.last = 0
        self._refs: dict[int, StorageRef] = {}
        self._outside: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if tensor.layout is torch.strided:
                address = tensor.untyped_storage()._cdata
                if address not in self._refs:
                    self._outside.add(address)
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.layout is torch.strided and tensor.device.type == self._device:
                self._note(tensor)
        self.last = self._now
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._refs or address in self._outside:
            return
        ref = StorageRef(storage, self._gone)
        ref.address = address
        ref.row = _block(storage.nbytes(), self._device)
        self._refs[address] = ref
        self._now += ref.row

    def _gone(self, ref: StorageRef) -> None:
        del self._refs[ref.address]
        self._now -= ref.row


class _Peak:
    """The highest use of a step, by CUDA's allocator. What the user has in memory besides is not counted."""

    def __init__(self, device: torch.device, model: nn.Module, inputs: Any) -> None:
        self._device = device
        self._model = model
        self._inputs = sum(_sizes(inputs, device.type).values())
        self._before = torch.cuda.memory_allocated(device)
        self._highest = torch.cuda.max_memory_allocated(device)

    def highest(self, optimizer: Optimizer) -> int | None:
        """It, if it can be told: the user's own count is not reset, and may have been higher before."""
        highest = torch.cuda.max_memory_allocated(self._device)
        if highest <= self._highest:
            return None
        held = [list(self._model.parameters()), list(self._model.buffers()), list(optimizer.state.values())]
        return sum(_sizes(held, self._device.type).values()) + self._inputs + highest - self._before


def _sizes(value: Any, device: str) -> dict[int, int]:
    """What the storages among some values take."""
    storages = (
        tensor.untyped_storage()
        for tensor in tensors_in(value)
        if tensor.layout is torch.strided and tensor.device.type == device
    )
    return {storage._cdata: _block(storage.nbytes(), device) for storage in storages}


def _block(size: int, device: str) -> int:
    return size if device == "cpu" else -(-size // CUDA_BLOCK) * CUDA_BLOCK


def _exceeds(real: int, promised: int) -> bool:
    return real > promised * (1 + SLACK) + SMALL


def _warn(what: str, real: int, promised: int) -> None:
    warn(
        f"{what} {size_in_words(real)} in memory, {100 * (real / max(promised, 1) - 1):.1f} % above the {size_in_words(promised)} "
        "that the plan promises. Something holds tensors that the capture did not see, such as a list of outputs that grows, experts "
        "get other shares than was assumed, or the inputs are larger than those that were captured; capture the step as it "
        "runs, or leave that much room in the budget"
    )


def size_in_words(size: int) -> str:
    """Bytes as people say them."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    listening = list(_listening)
    if not listening:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for promise in listening:
        if any(id(parameter) in stepped for parameter in promise.model.parameters()):
            promise.stepped(optimizer)
