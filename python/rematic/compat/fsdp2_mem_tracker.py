"""Drop-in for `torch.distributed._tools.fsdp2_mem_tracker`: memory in use under FSDP2, by what FSDP2 uses it for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves

from rematic.compat._snapshots import Watched, _RefType, _State
from rematic.compat.mem_tracker import MemTracker

__all__ = ["FSDPMemTracker"]

_GATHER = torch.ops.c10d._allgather_base_.default
_REDUCE = torch.ops.c10d._reduce_scatter_base_.default


class _FSDPRefType(_RefType):
    """What memory is for. `ALL_GATHER` is what weights are gathered into, `REDUCE_SCATTER` what gradients are reduced from."""

    SHARDED_PARAM = "Sharded Param"
    UNSHARDED_PARAM = "Unsharded Param"
    BUFFER = "Buffer"
    SHARDED_GRAD = "Sharded Grad"
    UNSHARDED_GRAD = "Unsharded Grad"
    ACT = "Activation"
    TEMP = "Temp"
    ALL_GATHER = "All Gather"
    REDUCE_SCATTER = "Reduce Scatter"
    OPT = "OptState"
    INP = "Inputs"


class _FSDPModState(_State):
    """When a module's snapshot was taken: before and after what FSDP2 does around its forward and its backward."""

    BEF_PRE_FW = "Before Pre-Forward"
    AFT_PRE_FW = "After Pre-Forward"
    BEF_POST_FW = "Before Post-Forward"
    AFT_POST_FW = "After Post-Forward"
    BEF_PRE_BW = "Before Pre-Backward"
    AFT_PRE_BW = "After Pre-Backward"
    BEF_POST_BW = "Before Post-Backward"
    AFT_POST_BW = "After Post-Backward"
    PRE_FW_AC = "Pre-Forward AC"
    POST_FW_AC = "Post-Forward AC"
    PEAK_FW = "Peak Forward"
    PEAK_BW = "Peak Backward"


class _FSDPModMemStats(Watched):
    """The memory of one sharded module."""

    peak_states = (_FSDPModState.PEAK_FW, _FSDPModState.PEAK_BW)


class _FSDPState(Enum):
    PRE_FW = auto()
    FW = auto()
    POST_FW = auto()
    PRE_BW = auto()
    BW = auto()
    POST_BW = auto()


class FSDPMemTracker(MemTracker):
    """Counts the memory of a model that was sharded with `fully_shard`, and for every sharded module.

        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((batch,))
        with tracker:
            model(batch).sum().backward()
            optimizer.step()
        tracker.display_snapshot("peak", units="MiB")
    """

    _kinds = _FSDPRefType
    _act = _FSDPRefType.ACT
    _temp = _FSDPRefType.TEMP
    _opt = _FSDPRefType.OPT

    def __init__(self, mod: nn.Module, optm: optim.Optimizer | None = None) -> None:
        super().__init__()
        if not isinstance(mod, FSDPModule):
            raise AssertionError("FSDPMemTracker only supports FSDP modules")
        self._root_mod: nn.Module = mod
        self._optm = optm
        self._fsdp_state = _FSDPState.PRE_FW
        # The parameter groups whose methods are wrapped, with their modules and the methods as they were.
        self._wrapped: list[tuple[Any, Any, Callable[..., Any], Callable[..., Any]]] = []

    def _sharded(self) -> Iterator[tuple[nn.Module, Any, Any]]:
        """The sharded modules that have parameters, with their states and groups."""
        for module in self._root_mod.modules():
            if isinstance(module, FSDPModule):
                state: Any = module._get_fsdp_state()
                if state._fsdp_param_group:
                    yield module, state, state._fsdp_param_group

    def _mark_shards(self, group: Any, *, parameters: bool = True) -> None:
        for parameter in group.fsdp_params:
            if parameters:
                self._mark(parameter.sharded_param, _FSDPRefType.SHARDED_PARAM)
            if parameter.sharded_param.grad is not None:
                self._mark(parameter.sharded_param.grad, _FSDPRefType.SHARDED_GRAD)

    def _stats_before_forward(self, module: nn.Module) -> Watched:
        name = self._mod_tracker.get_known_fqn(module)
        if name is None:
            raise AssertionError
        stats = self.memory_tracking.get(module)
        if stats is None:
            stats = self.memory_tracking[module] = _FSDPModMemStats(name)
            stats.watch(self._tally)
            stats.take(_FSDPModState.BEF_PRE_FW, stats.begin(backward=False))
        elif not self._mod_tracker.is_bw and self._is_next_iteration(name):
            raise NotImplementedError(
                "FSDPMemTracker does not support memory tracking for multiple iterative calls."
                " Either use ``reset_mod_stats`` to clear module memory stats for the previous iteration"
                " or file a github issue if you need this feature."
            )
        return stats

    def _around_pre_forward(self, module: nn.Module, state: Any) -> Callable[..., Any]:
        original = state._pre_forward

        @wraps(original)
        def around(*args: Any, **kwargs: Any) -> Any:
            self._fsdp_state = _FSDPState.PRE_FW
            stats = self._stats_before_forward(module)
            result = original(*args, **kwargs)
            for parameter in state._fsdp_param_group.fsdp_params:
                self._mark(parameter.unsharded_param, _FSDPRefType.UNSHARDED_PARAM)
            when = _FSDPModState.AFT_PRE_FW
            if self._mod_tracker.is_bw:
                when = _FSDPModState.PRE_FW_AC
                if self._ac_mod is None:
                    self._ac_mod = weakref.ref(module)
                    self._in_ac = True
            stats.take(when, self.get_tracker_snapshot())
            self._fsdp_state = _FSDPState.FW
            return result

        return around

    def _around_post_forward(self, module: nn.Module, state: Any) -> Callable[..., Any]:
        original = state._post_forward

        @wraps(original)
        def around(*args: Any, **kwargs: Any) -> Any:
            stats = self.memory_tracking[module]
            when = _FSDPModState.BEF_POST_FW
            if self._mod_tracker.is_bw:
                when = _FSDPModState.POST_FW_AC
                if self._ac_mod is not None and self._ac_mod() is module:
                    self._ac_mod = None
                    self._in_ac = False
            stats.take(when, self.get_tracker_snapshot())
            self._fsdp_state = _FSDPState.POST_FW
            result = original(*args, **kwargs)
            if not self._mod_tracker.is_bw:
                stats.take(_FSDPModState.AFT_POST_FW, self.get_tracker_snapshot())
            return result

        return around

    def _around_pre_backward(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., None]:
        @wraps(original)
        def around(*args: Any, **kwargs: Any) -> None:
            self._fsdp_state = _FSDPState.PRE_BW
            stats = self.memory_tracking[module]
            stats.take(_FSDPModState.BEF_PRE_BW, stats.begin(backward=True))
            original(*args, **kwargs)
            stats.take(_FSDPModState.AFT_PRE_BW, self.get_tracker_snapshot())
            self._fsdp_state = _FSDPState.BW

        return around

    def _around_post_backward(self, module: nn.Module, group: Any) -> Callable[..., None]:
        original = group.post_backward

        @wraps(original)
        def around(*args: Any, **kwargs: Any) -> None:
            # Torch's tracker holds the last of them until FSDP2 is done, and counts it.
            gradient = None
            for parameter in group.fsdp_params:
                gradient = parameter._unsharded_param.grad
                if gradient is not None:
                    self._mark(gradient, _FSDPRefType.UNSHARDED_GRAD, known=True)
            stats = self.memory_tracking[module]
            stats.take(_FSDPModState.BEF_POST_BW, self.get_tracker_snapshot())
            self._fsdp_state = _FSDPState.POST_BW
            original(*args, **kwargs)
            self._mark_shards(group, parameters=False)
            stats.take(_FSDPModState.AFT_POST_BW, self.get_tracker_snapshot())

        return around

    def _begin(self) -> None:
        # Of modules that were sharded together, one handle stands for several.
        handles: dict[Any, None] = {}
        for _, state, _ in self._sharded():
            handles |= dict.fromkeys((state._pre_forward_hook_handle, state._post_forward_hook_handle))
        for handle in handles:
            handle.remove()
        for module, state, group in list(self._sharded()):
            self._mark_shards(group)
            state._pre_forward_hook_handle = module.register_forward_pre_hook(
                self._around_pre_forward(module, state), prepend=True, with_kwargs=True
            )
            state._post_forward_hook_handle = module.register_forward_hook(
                self._around_post_forward(module, state), prepend=False, always_call=True
            )
            self._wrapped.append((module, group, group.pre_backward, group.post_backward))
            group.pre_backward = self._around_pre_backward(module, group.pre_backward)
            group.post_backward = self._around_post_backward(module, group)
        for buffer in self._root_mod.buffers():
            self._mark(buffer, _FSDPRefType.BUFFER)
        if self._optm is not None:
            self._track_optimizer_states(self._optm)
            self._watch_optimizers(self._optm.register_step_pre_hook, self._optm.register_step_post_hook)

    def _end(self) -> None:
        # The other way round: of modules that share a group, the first found its methods as they were.
        for module, group, pre_backward, post_backward in reversed(self._wrapped):
            state = module._get_fsdp_state()
            state._pre_forward_hook_handle.remove()
            state._post_forward_hook_handle.remove()
            state._pre_forward_hook_handle = module.register_forward_pre_hook(
                state._pre_forward, prepend=True, with_kwargs=True
            )
            state._post_forward_hook_handle = module.register_forward_hook(state._post_forward, prepend=False)
            group.pre_backward, group.post_backward = pre_backward, post_backward
        self._wrapped.clear()

    def track_inputs(self, inputs: tuple[Any, ...]) -> None:
        """Counts the tensors among a model's inputs, as `Inputs`."""
        for value in tree_leaves(inputs):
            if isinstance(value, Tensor):
                self._mark(value, _FSDPRefType.INP)

    def track_external(self, *external: nn.Module | optim.Optimizer | Tensor) -> None:
        """Does nothing: the model and the optimizer are known, and inputs are given to `track_inputs`."""

    def __enter__(self) -> FSDPMemTracker:
        super().__enter__()
        return self

    def _returned(self, func: Any, args: Any, result: Any, backward: bool) -> None:
        if func is _GATHER and self._fsdp_state in (_FSDPState.PRE_FW, _FSDPState.PRE_BW):
            self._mark(args[0], _FSDPRefType.ALL_GATHER, known=True)
        elif func is _REDUCE and self._fsdp_state is _FSDPState.POST_BW:
            self._mark(args[1], _FSDPRefType.REDUCE_SCATTER, known=True)
        super()._returned(func, args, result, backward)
