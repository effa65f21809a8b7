"""What operators send between ranks: of which kind, how much and to whom. Here nothing is sent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rematic._model.trees import tensors_in
from rematic._model.wrapped import inner

COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor")
# FSDP2's own, which pack and unpack what is sent.
PACKING = "fsdp"

UNKNOWN = ["unknown", 0, "", 0]
# By the beginning of the operator's name.
_KINDS = {
    "allgather": "all_gather", "_allgather": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce", "all_reduce": "all_reduce",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast", "send": "send", "isend": "send", "recv": "receive", "irecv": "receive",
}  # fmt: skip
# They send nothing and make nothing: a stream waits, or a tensor gets something around it that will.
_WAITS = ("wait_tensor", "wait_tensors", "_wrap_tensor_autograd", "record_grad_output_stream", "mesh_get_process_group")
# As the kernels are called that these run.
NAMES = {
    "fsdp.all_gather_copy_in.default": "all_gather_copy_in.default",
    "fsdp.split_with_sizes_copy.default": "split_with_sizes_copy.out",
    "fsdp.chunk_cat.default": "_chunk_cat.out",
    "fsdp.chunk_cat_mixed_dtype.default": "_chunk_cat.out",
}


def is_wait(func: Any) -> bool:
    """Whether an operator of `torch.distributed` does nothing that takes time or memory."""
    return func._opname in _WAITS


def is_wait_named(name: str) -> bool:
    """The same by the name of one, as a trace spells it."""
    return any(name.startswith(f"{namespace}.{wait}.") for namespace in COLLECTIVES for wait in _WAITS)


def kind_of(func: Any) -> str | None:
    """What a collective does between ranks."""
    return next((kind for name, kind in _KINDS.items() if func._opname.startswith(name)), None)


def waited(func: Any, args: Any) -> Any:
    """What an operator gives that does nothing."""
    if func._opname == "_wrap_tensor_autograd":
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        # As its kernels do; that of the meta device makes a copy.
        return AsyncCollectiveTensor(args[0])
    return args[0] if func._schema.returns else None


def answer(func: Any, args: Any, kwargs: Any) -> Any:
    """What a collective in place, or an operator that packs, gives on this rank, without other ranks."""
    if func.namespace == PACKING and func._schema.returns:
        return func(*args, **kwargs)
    given = []
    for returned in func._schema.returns:
        given.append(_work() if "Work" in str(returned.type) else args[0])
    return given[0] if len(given) == 1 else tuple(given) if given else None


def _work() -> Any:
    """A collective that is over."""
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


def group_of(func: Any, args: Any, kwargs: Any) -> Any:
    """The process group that a collective is called with; nothing if none is found."""
    from torch._C import _distributed_c10d as c10d

    resolve: Any = c10d._resolve_process_group

    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if isinstance(value, c10d.ProcessGroup):
            return value
        if isinstance(value, torch.ScriptObject):
            try:
                return c10d.ProcessGroup.unbox(value)
            except RuntimeError:  # some other object
                continue
        if isinstance(value, str) and argument.name.startswith("group"):
            return resolve(value)
    return None


def message(kind: str, func: Any, args: Any, out: Any) -> int:
    """The bytes of the whole message: what an all-gather gives to this rank, what a reduce-scatter takes from it."""
    in_place = func.namespace == "c10d"
    if kind == "all_gather":
        tensors: Any = args[0] if in_place else out
    elif kind == "reduce_scatter" and in_place:
        tensors = args[1]
    else:
        tensors = args[0]
    return sum(_size(tensor) for tensor in tensors_in(tensors))


def _size(tensor: Tensor) -> int:
    local = inner(tensor)
    return local.numel() * local.element_size()
