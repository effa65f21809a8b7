"""The net under everything else: while the first steps run under a plan, what is recomputed is compared with what was dropped.

Of every tensor that a recomputed operator makes, a fingerprint is taken in forward and again when it is recomputed: the sum
of its bits, and the bits of a few of its elements. It costs one pass over the tensor. Where an operator does not repeat to
the bit on its device, it and what follows in the region are compared within rounding.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor

from rematic._model.collectives import COLLECTIVES

from .errors import AuditError
from .policy import Policy, name_of

SAMPLE = 16
ALL = sys.maxsize
# Operators that have outputs which nobody fills in, or not wholly: only so many are compared.
_FILLED = {
    "_scaled_dot_product_flash_attention": 1, "_scaled_dot_product_efficient_attention": 1,
    "_scaled_dot_product_cudnn_attention": 1, "_scaled_dot_product_flash_attention_for_cpu": 1,
    "_flash_attention_forward": 1, "_efficient_attention_forward": 1, "_cudnn_attention_forward": 1,
    "_cudnn_rnn": 3, "mkldnn_rnn_layer": 3, "miopen_rnn": 3, "_embedding_bag": 1, "_embedding_bag_forward_only": 1,
    "_ctc_loss": 1, "_cudnn_ctc_loss": 1, "cudnn_batch_norm": 3,
}  # fmt: skip
# Operators that add up in any order where many threads share the work: not on the CPU.
_UNORDERED = frozenset(
    "index_add index_add_ index_put index_put_ _index_put_impl_ _unsafe_index_put scatter_add scatter_add_ scatter_reduce "
    "scatter_reduce_ put put_ index_reduce index_reduce_ cumsum cumsum_ bincount histc nll_loss2d_forward".split()
)
# How far sums of numbers may lie apart that differ by rounding alone, as a share of the sum of their magnitudes.
_ROUNDINGS, _MOST = 256, 0.05

Print = tuple[int, ...] | Tensor


class Audit:
    """Fingerprints of one run of a region, and of the next."""

    def __init__(self) -> None:
        self._first: dict[int, list[Print]] = {}
        self._again: dict[int, list[Print]] = {}
        # The first operator that does not repeat to the bit.
        self._unordered: int | None = None
        self._eps: dict[int, float] = {}

    def first(self, at: int, func: Any, args: Any, out: Any) -> None:
        """An operator has run that will run again."""
        tensors = _compared(func, args, out)
        if not tensors:
            return
        if self._unordered is None and _is_unordered(func, tensors[0]):
            self._unordered = at
        self._first[at] = self._prints(at, tensors)

    def again(self, at: int, func: Any, args: Any, out: Any) -> None:
        """It has run again."""
        if at in self._first:
            self._again[at] = self._prints(at, _compared(func, args, out))

    def restart(self) -> None:
        """It runs once more."""
        self._again = {}

    def _prints(self, at: int, tensors: list[Tensor]) -> list[Print]:
        is_rough = self._unordered is not None and at >= self._unordered
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            if not is_rough:
                return [_fingerprint(tensor) for tensor in tensors]
            numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
            self._eps[at] = max((torch.finfo(tensor.dtype).eps for tensor in numbers), default=0.0)
            return [_sums(tensor) for tensor in numbers]

    def check(self, policy: Policy) -> None:
        """Compares the two; the policy names the operators."""
        again, self._again = self._again, {}
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for at, prints in again.items():
                if not self._agree(at, self._first[at], prints):
                    raise AuditError(policy.module, policy.call, policy.positions[at], policy.names[at])

    def _agree(self, at: int, first: list[Print], again: list[Print]) -> bool:
        if len(first) != len(again):
            return False
        rough = at in self._eps
        return all((_near(*pair, self._eps[at]) if rough else _same(*pair)) for pair in zip(first, again, strict=True))


def _same(first: Print, again: Print) -> bool:
    if isinstance(first, Tensor) and isinstance(again, Tensor):
        return torch.equal(first, again)
    return first == again


def _near(first: Any, again: Any, eps: float) -> bool:
    (sum_1, size_1), (sum_2, size_2) = first.tolist(), again.tolist()
    allowed = min(_MOST, _ROUNDINGS * eps) * max(size_1, size_2)
    # What is not a number is equal to itself here.
    return sum_1 == sum_2 or abs(sum_1 - sum_2) <= allowed or (sum_1 != sum_1 and sum_2 != sum_2)


def _sums(tensor: Tensor) -> Tensor:
    return torch.stack([tensor.sum(dtype=torch.float64), torch.linalg.vector_norm(tensor, 1, dtype=torch.float64)])


def _fingerprint(tensor: Tensor) -> Print:
    """The sum of a tensor's bits and the bits of some of its elements: numbers on the CPU, a small tensor elsewhere."""
    bits = _bits(tensor)
    sample = bits[:: max(1, bits.numel() // SAMPLE)][:SAMPLE]
    if tensor.device.type == "cpu":
        return (int(bits.sum(dtype=bits.dtype)), *sample.tolist())
    return torch.cat([bits.sum(dtype=bits.dtype).view(1), sample])


def _bits(tensor: Tensor) -> Tensor:
    """A tensor's memory as a row of integers, as wide as fits; what does not lie together is copied."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not torch._prims_common.is_non_overlapping_and_dense_or_false(tensor):
        # Elements that stand for many are looked at once.
        sizes = [1 if stride == 0 else size for size, stride in zip(tensor.size(), tensor.stride(), strict=True)]
        tensor = tensor.as_strided(sizes, tensor.stride()).contiguous()
    row = tensor.as_strided((tensor.numel(),), (1,))
    size, start = row.numel() * row.element_size(), row.storage_offset() * row.element_size()
    for width in (torch.int64, torch.int32, torch.int16):
        if size % width.itemsize == 0 and start % width.itemsize == 0:
            return row.view(width)
    return row.view(torch.uint8)


def _compared(func: Any, args: Any, out: Any) -> list[Tensor]:
    """The outputs of an operator that it makes, and makes again alike."""
    filled = _filled(func)
    if not filled:
        return []
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    found = [
        tensor
        for tensor in outputs[:filled]
        if type(tensor) is Tensor and tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta
    ]
    if func._schema.is_mutable:
        return found
    # Not every view says so in its schema. What it shows may have been saved, and have been changed since by an operator
    # that is saved too.
    taken = {tensor.untyped_storage()._cdata for tensor in args if isinstance(tensor, Tensor)}
    return [tensor for tensor in found if tensor.untyped_storage()._cdata not in taken]


@functools.cache
def _filled(func: Any) -> int:
    """How many tensors that an operator returns are compared; none of a view, nor of what nobody fills in."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    if func.namespace in COLLECTIVES:
        return 0  # it may still be under way; who reads it waits
    if name.startswith(("empty", "new_empty", "resize", "_efficientzerotensor")):
        return 0
    if not schema.is_mutable and any(returned.alias_info is not None for returned in schema.returns):
        return 0
    if func.namespace != "aten":
        return 1
    return _FILLED.get(name, ALL)


def _is_unordered(func: Any, tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and (
        func.namespace != "aten" or name_of(func).partition(".")[0] in _UNORDERED
    )
