"""Drop-in for `torch.distributed._tools.mem_tracker`: memory in use by kind, while a program runs.

The sums are kept in Rust: an operator costs what it returns and the modules that run at that moment, where torch's cost grows
with the number of all modules.
"""

from __future__ import annotations

import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, UntypedStorage, nn, optim
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rematic import _core
from rematic.compat._memo import Memo
from rematic.compat._snapshots import (
    TOTAL,
    Snapshot,
    Watched,
    _MemRefType,
    _ModMemStats,
    _ModState,
    _RefType,
    _State,
    print_snapshot,
    print_states,
)
from rematic.compat.common_utils import get_untyped_storages
from rematic.compat.mod_tracker import ModTracker

__all__ = ["MemTracker"]

# For those who import torch's private names.
_TOTAL_KEY = TOTAL
_PYTORCH_MIN_ALLOCATE = 512 if int(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", 0)) == 0 else 1
_PRIVATE = (_RefType, _State)

_WAIT = torch.ops._c10d_functional.wait_tensor.default


class _Alive(weakref.ref[UntypedStorage]):
    """A storage that is counted, until it goes."""

    __slots__ = ("key",)
    key: int


class _Names(ModTracker):
    """Tells the tally which modules run."""

    def __init__(self, tally: _core.Tally) -> None:
        super().__init__()
        self._entered = tally.enter  # type: ignore[method-assign]
        self._left = tally.leave  # type: ignore[method-assign]
        self._left_all = tally.leave_all  # type: ignore[method-assign]


class MemTracker(TorchDispatchMode):
    """Counts the memory of tensors that are made within its context, by device and kind, and for every module that runs.

    What was made before is given to `track_external`. `memory_tracking` has the statistics of each module: its snapshots
    before, after and at the highest point of its forward and its backward.

        tracker = MemTracker()
        tracker.track_external(model, optimizer, batch)
        with tracker as mt:
            model(batch).sum().backward()
            optimizer.step()
        mt.display_snapshot("peak", units="MiB", tabulate=True)
    """

    _kinds: ClassVar[type[_RefType]] = _MemRefType
    _act: ClassVar[_RefType] = _MemRefType.ACT
    _temp: ClassVar[_RefType] = _MemRefType.TEMP
    _opt: ClassVar[_RefType] = _MemRefType.OPT

    def __init__(self) -> None:
        super().__init__()
        self.memory_tracking = WeakIdKeyDictionary()
        kinds = list(self._kinds)
        self._kind_of = {kind: place for place, kind in enumerate(kinds)}
        self._forward_kind, self._backward_kind, self._optimizer_kind = (
            self._kind_of[kind] for kind in (self._act, self._temp, self._opt)
        )
        self._tally = _core.Tally(kinds, TOTAL)
        self._devices: dict[torch.device, int] = {}
        self._alive: dict[int, _Alive] = {}
        self._memo = Memo()
        self._mod_tracker: ModTracker = _Names(self._tally)
        self._param_to_grad_hook_handles = WeakIdKeyDictionary()
        self._optimizer_hook_handles: tuple[Any, ...] = ()
        self._in_opt = False
        self._in_ac = False
        # The outermost module that runs again in backward.
        self._ac_mod: weakref.ref[nn.Module] | None = None
        self._orig_resize = UntypedStorage.resize_
        self._fake_mode_on_entry: Any = None
        self._depth = 0

    # Storages

    def _device(self, device: torch.device) -> int:
        number = self._devices.get(device)
        if number is None:
            block = _PYTORCH_MIN_ALLOCATE if device.type == "cuda" else 1
            number = self._devices[device] = self._tally.add_device(device, block)
        return number

    def _keep(self, storage: UntypedStorage, key: int) -> None:
        alive = self._alive[key] = _Alive(storage, self._gone)
        alive.key = key

    def _gone(self, alive: weakref.ref[UntypedStorage]) -> None:
        key = alive.key  # type: ignore[attr-defined]
        # Its address may have been taken by another storage already.
        if self._alive.get(key) is alive:
            del self._alive[key]
            self._tally.remove(key)

    def _see(self, tensor: Tensor, kind: int) -> None:
        """What an operator returned. Of a tensor with several storages, those after the first known one are not seen, as in
        torch."""
        storages: Iterable[UntypedStorage]
        if is_traceable_wrapper_subclass(tensor):
            storages = get_untyped_storages(tensor)
        else:
            storages = (tensor.untyped_storage(),)
        device = self._device(tensor.device)
        for storage in storages:
            key = storage._cdata
            if not self._tally.see(key, device, storage.size(), kind):
                return
            self._keep(storage, key)

    def _mark(self, tensor: Tensor, kind: _RefType, *, known: bool = False) -> int:
        """Says what a tensor is for; returns the bytes of its storages. `known`: it must have been seen."""
        number, device = self._kind_of[kind], self._device(tensor.device)
        size = 0
        for storage in get_untyped_storages(tensor):
            key = storage._cdata
            if known and not self._tally.is_known(key):
                raise KeyError("No existing winfo found")
            if self._tally.mark(key, device, storage.size(), number):
                self._keep(storage, key)
            size += self._tally.bytes_of(key)
        return size

    def _known_bytes(self, values: Any) -> int:
        """The bytes of the tensors that are counted."""
        tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
        return sum(self._tally.bytes_of(storage._cdata) for tensor in tensors for storage in get_untyped_storages(tensor))

    def _track_resize(self) -> None:
        # No dispatch mode sees it.
        original, tally = self._orig_resize, self._tally

        def resize_(storage: UntypedStorage, size: int) -> None:
            original(storage, size)
            tally.resize(storage._cdata, storage.size())

        UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def _restore_resize(self) -> None:
        UntypedStorage.resize_ = self._orig_resize  # type: ignore[method-assign]

    # Modules and optimizers

    def _track_module_params_and_buffers(self, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        def gradient(grad: Tensor) -> None:
            self._mark(grad, _MemRefType.GRAD)

        parameters = 0
        for parameter in module.parameters():
            parameters += self._mark(parameter, _MemRefType.PARAM)
            if parameter.grad is not None:
                gradient(parameter.grad)
            # A frozen parameter takes no hook.
            if install_grad_hooks and parameter.requires_grad and parameter not in self._param_to_grad_hook_handles:
                self._param_to_grad_hook_handles[parameter] = (
                    parameter.register_hook(gradient),
                    parameter.register_post_accumulate_grad_hook(lambda leaf: gradient(leaf.grad)),
                )
        buffers = sum(self._mark(buffer, _MemRefType.BUFFER) for buffer in module.buffers())
        return parameters, buffers

    def _is_next_iteration(self, name: str) -> bool:
        """Whether a module that ran before is called by nobody."""
        return self._mod_tracker.parents - {name} == {"Global"}

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        name = self._mod_tracker.get_known_fqn(module)
        if name is None:
            raise AssertionError
        stats = self.memory_tracking.get(module)
        if stats is None:
            stats = _ModMemStats(name)
            stats.watch(self._tally)
            stats.parameter_mem, stats.buffer_mem = self._track_module_params_and_buffers(module)
            self.memory_tracking[module] = stats
        elif self._mod_tracker.is_bw:
            if self._ac_mod is None:
                self._ac_mod = weakref.ref(module)
                self._in_ac = True
            stats.take(_ModState.PRE_FW_AC, self.get_tracker_snapshot())
            return
        elif self._is_next_iteration(name):
            raise NotImplementedError(
                "MemTracker does not support memory tracking for multiple iterative calls."
                " Either use ``reset_mod_stats`` to clear module memory stats for the previous iteration"
                " or file a github issue if you need this feature."
            )
        stats.input_mem = self._known_bytes(inputs)
        stats.take(_ModState.PRE_FW, stats.begin(backward=False))

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        stats = self.memory_tracking[module]
        state = _ModState.POST_FW
        if self._mod_tracker.is_bw:
            state = _ModState.POST_FW_AC
            if self._ac_mod is not None and self._ac_mod() is module:
                self._ac_mod = None
                self._in_ac = False
        else:
            stats.output_mem = self._known_bytes(outputs)
        stats.take(state, self.get_tracker_snapshot())

    def _pre_bw_hook(self, module: nn.Module | None, gradients: Any) -> None:
        if module is None:
            warnings.warn("Module is None. Skipping PRE_BW hook.", stacklevel=2)
            return
        stats = self.memory_tracking[module]
        stats.take(_ModState.PRE_BW, stats.begin(backward=True))

    def _post_bw_hook(self, module: nn.Module | None, gradients: Any) -> None:
        if module is None:
            warnings.warn("Module is None. Skipping POST_BW hook.", stacklevel=2)
            return
        self.memory_tracking[module].take(_ModState.POST_BW, self.get_tracker_snapshot())

    def _track_optimizer_states(self, optimizer: optim.Optimizer) -> None:
        for states in optimizer.state.values():
            for value in states.values():
                if isinstance(value, Tensor):
                    self._mark(value, self._opt)

    def _watch_optimizers(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        def began(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._in_opt = True

        def ended(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._track_optimizer_states(optimizer)
            self._in_opt = False

        self._optimizer_hook_handles = (before(began), after(ended))

    # The public face

    def track_external(self, *external: nn.Module | optim.Optimizer | Tensor) -> None:
        """Counts what was made outside: modules, optimizers and tensors. To be called before the context is entered."""
        for value in tree_leaves(external, is_leaf=lambda item: item is None):
            if isinstance(value, Tensor):
                self._mark(value, _MemRefType.OTH)
            elif isinstance(value, nn.Module):
                self._track_module_params_and_buffers(value, install_grad_hooks=False)
            elif isinstance(value, optim.Optimizer):
                self._track_optimizer_states(value)
            elif value is not None:
                raise TypeError(
                    f"Object of type {type(value)} is not supported for tracking. "
                    f"Only stateful objects like modules, optimizers, and tensors are supported."
                )

    def get_tracker_snapshot(self, type: str = "current") -> Snapshot:
        """Bytes by device and kind: "current", or where each device's total was highest ("peak")."""
        if type == "current":
            return self._tally.usage()
        if type == "peak":
            return self._tally.peak()
        raise ValueError(f"Invalid type {type}")

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Prints a snapshot in B, KiB, MiB or GiB."""
        print_snapshot(self.get_tracker_snapshot(type), units, tabulate)

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Prints the snapshots of the modules, down to a depth of the hierarchy."""

        def order(stats: Watched) -> list[int | str]:
            return [int(part) if part.isdigit() else part.lower() for part in re.split("([0-9]+)", stats.mod_fqn)]

        for stats in sorted(self.memory_tracking.values(), key=order):
            if stats.mod_fqn.count(".") + 1 <= depth:
                print(f"Module:  {stats.mod_fqn}")
                print_states(stats.snapshots, units, tabulate)

    def reset_mod_stats(self) -> None:
        """Forgets the statistics of all modules, as is needed before another step."""
        for stats in self.memory_tracking.values():
            stats.detach()
        self.memory_tracking.clear()
        self._tally.unwatch_all()

    def _begin(self) -> None:
        self._watch_optimizers(register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
        self._mod_tracker.register_user_hooks(
            self._pre_fw_hook, self._post_fw_hook, self._pre_bw_hook, self._post_bw_hook
        )

    def _end(self) -> None:
        for handles in self._param_to_grad_hook_handles.values():
            for handle in handles:
                handle.remove()
        self._param_to_grad_hook_handles.clear()
        self._mod_tracker.clear_user_hooks()

    def __enter__(self) -> MemTracker:
        if self._depth == 0:
            self._fake_mode_on_entry = active_fake_mode()
            self._begin()
            self._track_resize()
            self._tally.restart_peak()
            self._mod_tracker.__enter__()
        super().__enter__()
        self._depth += 1
        return self

    def __exit__(self, *args: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._end()
            for handle in self._optimizer_hook_handles:
                handle.remove()
            self._optimizer_hook_handles = ()
            self._restore_resize()
            self._mod_tracker.__exit__(*args)
        super().__exit__(*args)

    def _returned(self, func: Any, args: Any, result: Any, backward: bool) -> None:
        """An operator of the step has run."""
        if self._in_opt:
            kind = self._optimizer_kind
        elif backward and not self._in_ac:
            kind = self._backward_kind
        else:
            kind = self._forward_kind
        if isinstance(result, Tensor):
            self._see(result, kind)
        elif result is not None:
            for value in result if type(result) in (tuple, list) else (result,):
                if isinstance(value, Tensor):
                    self._see(value, kind)
                elif isinstance(value, (tuple, list, dict)):
                    for leaf in tree_leaves(value):
                        if isinstance(leaf, Tensor):
                            self._see(leaf, kind)
        self._tally.observe(backward)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # First it becomes operators of local tensors.
        if DTensor in types:
            return NotImplemented
        fake = active_fake_mode()
        if func is _WAIT and fake:
            # On fake tensors it would make a new one, which it does not otherwise.
            result = args[0]
        else:
            result = self._memo.run(func, args, kwargs)
        # DTensor asks for shapes in a mode of its own; those tensors are nowhere.
        if fake is self._fake_mode_on_entry:
            self._returned(func, args, result, torch._C._current_graph_task_id() != -1)
        return result
