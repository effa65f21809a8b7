"""The parts of PyTorch's FSDP2 that a capture touches. What is known here is known of torch 2.15; where something that is needed is
missing or something is not known, that is said."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn

from .errors import CaptureError
from .operators import BACKWARD

if TYPE_CHECKING:
    from .recorder import Recorder
    from .streams import Streams

_PLACE = "torch.distributed.fsdp._fully_shard"
_META = torch.device("meta")
# What is asked of each of its modules.
_ASKED = {
    "_fully_shard": ("fully_shard", "_get_device_from_mesh"),
    "_fsdp_collectives": ("_get_device_handle", "DefaultAllGather", "DefaultReduceScatter"),
    "_fsdp_param": ("alloc_storage", "free_storage"),
    "_fsdp_param_group": ("_get_device_handle", "FSDPParamGroup", "FSDPCommContext"),
    "_fsdp_state": ("_get_device_handle", "FSDPState"),
}
# What runs beside the model's own operators, and in which phase, if that is not known from autograd.
_ASIDE = {"unshard": None, "wait_for_unshard": None, "reshard": None, "post_backward": BACKWARD}
_STREAM = "_stream"


class FullyShard:
    """FSDP2 as it is installed."""

    def __init__(self) -> None:
        contract = importlib.import_module("torch.distributed._composable.contract")
        self._modules = {name: importlib.import_module(f"{_PLACE}.{name}") for name in _ASKED}
        for name, asked in _ASKED.items():
            missing = [part for part in asked if not hasattr(self._modules[name], part)]
            if missing:
                raise CaptureError(
                    f"FSDP2 of torch {torch.__version__} is not known: `{name}` has no {', '.join(missing)}; take torch 2.15, or "
                    "capture the model before it is sharded and spread the step with Trace.fsdp"
                )
        # Where modules keep what `fully_shard` knows of them.
        self.keys = (contract.STATE_KEY, contract.REGISTRY_KEY)
        self._registry: str = contract.REGISTRY_KEY

    def check(self, state: Any) -> None:
        """Refuses what a copy cannot be given."""
        name = " and ".join(f"`{type(module).__name__}`" for module in state._modules)
        if type(state).__name__ != "FSDPState":
            raise CaptureError(f"{name} is spread by {type(state).__name__}, which is not known; capture it before that")
        others = {api for module in state._modules for api in getattr(module, self._registry, {})} - {"fully_shard"}
        if others:
            raise CaptureError(f"{name} is wrapped by {', '.join(sorted(others))} too, which is not known; capture it without that")
        if len(state._fsdp_param_groups) > 1:
            raise CaptureError(f"{name} is sharded over several meshes at once, which is not known; give fully_shard one mesh")
        for group in state._fsdp_param_groups:
            self._check_group(name, state, group)

    def _check_group(self, name: str, state: Any, group: Any) -> None:
        collectives = self._modules["_fsdp_collectives"]
        if type(group.offload_policy).__name__ == "CPUOffloadPolicy":
            raise CaptureError(
                f"{name} keeps its shards on the CPU (CPUOffloadPolicy), where the optimizer steps; that is not captured yet: "
                "capture it without offload_policy"
            )
        if group.mesh_info.is_spmd_mesh:
            raise CaptureError(f"{name} is sharded with dp_mesh_dims, which is not known; give fully_shard the mesh of its axes")
        if group._all_reduce_hook is not None:
            raise CaptureError(f"{name} has a hook for all-reduce, and what that does is not known; capture it without")
        if (
            type(group._all_gather_comm) is not collectives.DefaultAllGather
            or type(group._reduce_scatter_comm) is not collectives.DefaultReduceScatter
        ):
            raise CaptureError(f"{name} communicates in a way of its own, whose memory is not known; capture it with FSDP2's own")
        for parameter in group.fsdp_params:
            if hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather"):
                kind = type(parameter._sharded_local_tensor).__name__
                raise CaptureError(f"A shard of {name} is of type {kind}, which gathers in its own way; that is not known")
            if parameter.mp_policy != state._mp_policy:
                raise CaptureError(f"{name} has parameters of several MixedPrecisionPolicies, which is not known; give it one")

    @staticmethod
    def hooks(state: Any) -> list[int]:
        """The numbers of the hooks that it has put onto its modules."""
        handles: list[Any] = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
        single = [one for handle in handles for one in getattr(handle, "handles", (handle,))]
        return [handle.id for handle in single]

    @staticmethod
    def spread(local: Tensor, spec: Any) -> Tensor:
        """A rank's part of a tensor that was spread before it was sharded."""
        from torch.distributed.tensor import DTensor

        made: Tensor = DTensor(local, spec, requires_grad=False)
        return made

    def shard(self, state: Any, modules: list[nn.Module], mesh: Any, placement: Any, ignored: set[nn.Parameter]) -> Any:
        """Shards modules as those of a state were sharded, on the meta device. Gives their state."""
        fully_shard = self._modules["_fully_shard"]
        groups = state._fsdp_param_groups
        reshard = _reshards(groups[0]) if groups else True
        with mock.patch.object(fully_shard, "_get_device_from_mesh", lambda mesh: _META):
            fully_shard.fully_shard(
                modules[0] if len(modules) == 1 else modules,
                mesh=groups[0].mesh_info.mesh if groups else mesh,
                reshard_after_forward=None if state._auto_reshard_after_forward else reshard,
                shard_placement_fn=placement,
                mp_policy=state._mp_policy,
                ignored_params=ignored or None,
            )
        return modules[0]._get_fsdp_state()  # type: ignore[operator]

    @contextlib.contextmanager
    def running_on(self, streams: Streams) -> Iterator[None]:
        """While it is entered, what is sharded on the meta device runs on these streams, as on CUDA."""
        with contextlib.ExitStack() as stack:
            for module in self._modules.values():
                original = getattr(module, "_get_device_handle", None)
                if original is not None:
                    stack.enter_context(mock.patch.object(module, "_get_device_handle", _handles(original, streams)))
            group = self._modules["_fsdp_param_group"].FSDPParamGroup
            stack.enter_context(mock.patch.object(group, "_validate_no_meta_params", lambda group: None))
            yield

    @contextlib.contextmanager
    def watching(self, recorder: Recorder) -> Iterator[None]:
        """While it is entered, a recorder knows what is done to gather and reduce."""
        group = self._modules["_fsdp_param_group"].FSDPParamGroup
        with contextlib.ExitStack() as stack:
            for name, phase in _ASIDE.items():
                stack.enter_context(mock.patch.object(group, name, _aside(getattr(group, name), recorder, phase)))
            yield

    @staticmethod
    def names(states: list[Any]) -> dict[int, str]:
        """What the streams are for, by their numbers."""
        found: dict[int, str] = {}
        for state in states:
            for name, stream in vars(state._comm_ctx).items():
                if name.endswith(_STREAM):
                    found.setdefault(stream.number, name.removesuffix(_STREAM))
        return found


def _reshards(group: Any) -> bool | int:
    after = group.post_forward_mesh_info
    if after is None:
        return False
    return True if after == group.mesh_info else int(after.shard_mesh_size)


def _handles(original: Callable[..., Any], streams: Streams) -> Callable[..., Any]:
    return lambda kind="cuda": streams if kind == "meta" else original(kind)


def _aside(method: Callable[..., Any], recorder: Recorder, phase: str | None) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        with recorder.aside(phase):
            return method(*args, **kwargs)

    return noted
