"""Drop-in for `torch.distributed._tools.fake_collectives`: which operators communicate, among whom, and how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work, _resolve_process_group
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

_FUNCTIONAL, _AUTOGRAD = "_c10d_functional", "_c10d_functional_autograd"


class _Rule(NamedTuple):
    """How a collective is called: the place of its group among the arguments, what it sends, and where its work is."""

    group: int | None = None
    sent: str | None = None
    work: str | None = None


# What is sent: the tensors of the first or the second argument, of what is returned, …; of a storage, all of it.
_RULES: dict[str, dict[str, _Rule]] = {
    "c10d": {
        "broadcast_": _Rule(1, "first", "second result"),
        "allreduce_": _Rule(1, "first", "second result"),
        "reduce_": _Rule(1, "first", "result"),
        "send": _Rule(1, "first", "result"),
        "recv_": _Rule(1, "first", "result"),
        "recv_any_source_": _Rule(1, "first", "result"),
        "allgather_": _Rule(2, "first", "second result"),
        "reduce_scatter_": _Rule(2, "second", "second result"),
        "_reduce_scatter_base_": _Rule(2, "second storage", "second result"),
        "_allgather_base_": _Rule(2, "storage", "second result"),
        "gather_": _Rule(2, "first", "result"),
        "scatter_": _Rule(2, "second", "second result"),
        "alltoall_": _Rule(2, "larger", "second result"),
        "alltoall_base_": _Rule(2, "larger", "result"),
        "barrier": _Rule(1, None, "result"),
        "monitored_barrier_": _Rule(),
    },
    _FUNCTIONAL: {
        "broadcast": _Rule(2, "storage"),
        "all_reduce": _Rule(2, "storage"),
        "all_gather_into_tensor": _Rule(2, "result"),
        "reduce_scatter_tensor": _Rule(3, "storage"),
        "reduce_scatter_tensor_out": _Rule(),
        "all_to_all_single": _Rule(3, "first and result"),
        "wait_tensor": _Rule(),
        "wait_tensors": _Rule(),
        "all_reduce_": _Rule(2, "storage"),
        "all_reduce_coalesced": _Rule(2, "first"),
        "all_reduce_coalesced_": _Rule(2, "first"),
        "all_gather_into_tensor_out": _Rule(2, "last storage"),
        "all_gather_into_tensor_coalesced": _Rule(2, "results"),
        "reduce_scatter_tensor_coalesced": _Rule(3, "results"),
        "broadcast_": _Rule(2, "storage"),
        "isend": _Rule(3, None, "second result"),
        "irecv": _Rule(3, None, "second result"),
        "batch_p2p_ops": _Rule(4, "fourth"),
    },
    _AUTOGRAD: {
        "all_to_all_single": _Rule(3, "first and result"),
        "all_gather_into_tensor": _Rule(2, "result"),
        "reduce_scatter_tensor": _Rule(3, "storage"),
    },
    "_dtensor": {"shard_dim_alltoall": _Rule(3, "first and result")},
}


def _found() -> dict[OpOverload, _Rule]:
    """The rule of every operator that this version of torch has."""
    found = {}
    for space, rules in _RULES.items():
        for name, rule in rules.items():
            packet = getattr(getattr(torch.ops, space), name, None)
            if packet is not None:
                found[packet.default] = rule
    return found


_RULE_OF = _found()
_SYNC = ("barrier", "monitored_barrier_", "wait_tensor", "wait_tensors")


def _those(test: Callable[[OpOverload, _Rule], bool]) -> set[OpOverload]:
    return {func for func, rule in _RULE_OF.items() if test(func, rule)}


non_functional_collectives: set[OpOverload] = _those(lambda func, _: func.namespace == "c10d")
functional_collectives: set[OpOverload] = _those(lambda func, _: func.namespace != "c10d")
sync_ops: set[OpOverload] = _those(lambda func, _: func._overloadpacket.__name__ in _SYNC)
collective_ops: set[OpOverload] = functional_collectives | non_functional_collectives


class CollectiveOp:
    """What a call of a collective says of itself."""

    PG_ARG_1 = _those(lambda _, rule: rule.group == 1)
    PG_ARG_2 = _those(lambda func, rule: rule.group == 2 and func.namespace == "c10d")
    PG_ARG_3 = _those(lambda func, rule: rule.group == 2 and func.namespace != "c10d")
    PG_ARG_4 = _those(lambda _, rule: rule.group == 3)
    PG_ARG_5 = _those(lambda _, rule: rule.group == 4)
    WK_ARG_1 = _those(lambda _, rule: rule.work == "second result")
    WK = _those(lambda _, rule: rule.work == "result")
    COMM_TENSOR_ARG_0 = _those(lambda _, rule: rule.sent == "first")
    COMM_TENSOR_ARG_1 = _those(lambda _, rule: rule.sent == "second")
    COMM_TENSOR_ARG_RES = _those(lambda _, rule: rule.sent == "result")
    COMM_TENSOR_SINGLE_UNTYPED_STORAGE = _those(lambda _, rule: rule.sent == "storage")
    COMM_TENSOR_ARG_0_AND_RES = _those(lambda _, rule: rule.sent == "first and result")
    COMM_TENSOR_RES_SUM = _those(lambda _, rule: rule.sent == "results")

    @staticmethod
    def sum_tensors(arg: Any) -> int:
        """The bytes of the storages of all tensors in it."""
        return sum(value.untyped_storage().nbytes() for value in tree_leaves(arg) if isinstance(value, Tensor))

    @staticmethod
    def get_process_group(func: OpOverload, args: Any) -> ProcessGroup:
        """The group of a call; waiting has none."""
        place = _RULE_OF.get(func, _Rule()).group
        if place is None:
            raise TypeError(f"Func {func} not found in {collective_ops}")
        if func.namespace == "c10d":
            return ProcessGroup.unbox(args[place])
        return _resolve_process_group(args[place])

    @staticmethod
    def get_comm_tensor_size(func: OpOverload, res: Any, args: Any, kwargs: Any) -> int:
        """The bytes that a call sends; waiting and barriers send none."""
        size = CollectiveOp.sum_tensors
        match _RULE_OF.get(func, _Rule()).sent:
            case "first" | "storage":
                return size(args[0])
            case "second" | "second storage":
                return size(args[1])
            case "fourth":
                return size(args[3])
            case "last storage":
                return size(args[-1])
            case "larger":
                return max(size(args[0]), size(args[1]))
            case "result" | "results":
                return size(res)
            case "first and result":
                return size(args[0]) + size(res)
        raise TypeError(f"Unknown function: {func} in {collective_ops}")

    @staticmethod
    def get_work(func: OpOverload, res: Any) -> Work:
        """What a call returned to wait for."""
        match _RULE_OF.get(func, _Rule()).work:
            case "result":
                return FakeWork.unbox(res)
            case "second result":
                return FakeWork.unbox(res[1])
        raise TypeError(f"Func {func} not found in {collective_ops}")
