"""How long torch's estimators think that an operator takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor.analysis.device_info import datasheet_dram_bw_gbs, datasheet_tops
from torch._inductor.utils import get_device_dram_gbps, get_device_tflops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from rematic import _core

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_VIEW_NAMES = """lift_fresh t transpose view detach _unsafe_view split adjoint as_strided diagonal expand expand_as movedim
    permute select squeeze mT mH real imag view_as unflatten unfold unbind unsqueeze vsplit hsplit split_with_sizes swapaxes
    swapdims chunk"""
_CREATED_NAMES = "randint randn rand randn_like rand_like randint_like arange ones_like zeros_like"


def _packets(names: str) -> set[Any]:
    return {getattr(torch.ops.aten, name) for name in names.split()}


VIEWS = _packets(_VIEW_NAMES)
# By torch's model they take no time.
FREE = VIEWS | _packets(_CREATED_NAMES)


class Sheet:
    """What a GPU can do, as torch has it: a name of its data sheet, or the GPU that is there."""

    def __init__(self, gpu_type: str | None) -> None:
        self._gpu_type = gpu_type
        self._peaks: dict[tuple[torch.dtype, bool], float] = {}
        self._bandwidth: float | None = None

    def tflops(self, dtype: torch.dtype) -> float:
        """The dense peak for a type."""
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        if (dtype, tf32) not in self._peaks:
            if self._gpu_type is None:
                peak = get_device_tflops(dtype)
            else:
                peak = datasheet_tops(dtype, is_tf32=tf32, device_name=self._gpu_type)  # type: ignore[assignment]
                if peak is None:
                    raise ValueError(f"gpu_type {self._gpu_type!r} has no datasheet entry for {dtype}")
            self._peaks[dtype, tf32] = float(peak)
        return self._peaks[dtype, tf32]

    def bandwidth(self) -> float:
        """GB/s of its memory; 0 if torch does not know."""
        if self._bandwidth is None:
            if self._gpu_type is None:
                found = get_device_dram_gbps()
            else:
                found = datasheet_dram_bw_gbs(self._gpu_type)
                if found is None:
                    raise ValueError(f"gpu_type {self._gpu_type!r} not found in datasheet")
            self._bandwidth = float(found or 0.0)
        return self._bandwidth


def modelled_ms(sheet: Sheet, func: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Milliseconds by torch's roofline."""
    packet = func._overloadpacket
    if packet in FREE:
        return 0.0
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    moved = sum(_bytes(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    moved += sum(map(_bytes, outputs))
    flops, tflops = 0.0, 0.0
    if packet in flop_registry:
        dtypes = {output.dtype for output in outputs if output.dtype in FLOATING}
        if len(dtypes) != 1:
            raise AssertionError(f"Only support single out dtype got {dtypes} for {packet}")
        flops = flop_registry[packet](*args, **kwargs, out_val=result)
        tflops = sheet.tflops(dtypes.pop())
    return _core.torch_roofline(flops, tflops, moved, sheet.bandwidth())


def _bytes(tensor: Tensor) -> int:
    """What is touched of a tensor: a dimension without stride is one element."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride()):
        if type(size) is int and type(stride) is int:
            count *= size if stride != 0 else 1
        else:
            from torch.fx.experimental.symbolic_shapes import optimization_hint, statically_known_true

            count *= 1 if statically_known_true(stride == 0) else optimization_hint(size, fallback=0)
    return count


def measured(fake_mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    """Runs an operator for real on tensors of the same shapes; its result as fake tensors, and milliseconds by the device's
    clock. NotImplementedError where the result is a part of an argument."""
    if torch.Tag.inplace_view in func.tags:
        raise NotImplementedError
    fakes: dict[int, Any] = {}
    flat, spec = tree_flatten((args, kwargs))
    with no_dispatch():

        def real(value: Any) -> Any:
            if not fake_mode.is_our_fake(value):
                return value
            like = torch.rand_like if value.dtype in FLOATING else torch.ones_like
            made = like(value, device=value.fake_device)
            if value.is_sparse:
                made._coalesced_(value.is_coalesced())
            fakes[id(made)] = value
            return made

        flat = [real(value) for value in flat]
        real_args, real_kwargs = tree_unflatten(flat, spec)
        result = func(*real_args, **real_kwargs)
        for _ in range(2):
            func(*real_args, **real_kwargs)
        began, ended = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        began.record(torch.accelerator.current_stream())
        for _ in range(3):
            func(*real_args, **real_kwargs)
        ended.record(torch.accelerator.current_stream())
        torch.accelerator.synchronize()
        millis = began.elapsed_time(ended) / 3
    taken = {value.untyped_storage()._cdata for value in flat if isinstance(value, Tensor) and not value.is_sparse}

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in fakes:
            return fakes[id(value)]
        if not value.is_sparse and value.untyped_storage()._cdata in taken:
            raise NotImplementedError
        return fake_mode.fake_tensor_converter.from_real_tensor(fake_mode, value)

    return tree_map(fake, result), millis
