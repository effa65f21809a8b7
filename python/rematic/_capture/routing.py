"""Composite operators choose their kernels by device, and on the meta device they choose neither as on CUDA nor, in
part, as on the CPU. While a device is imitated, they are sent to its choice."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from .attention import attention_on_cpu, attention_on_cuda, flash_backward_meta
from .autocast import Autocast, Kernel
from .convolution import CPU_CONVOLUTIONS, CUDA_CONVOLUTIONS, Convolutions
from .cudnn import CUDNN_META, CUDNN_ON_CUDA
from .layouts import layout_kernels
from .losses import LOSSES_META, LOSSES_ON_CUDA
from .norms import (
    batch_norm_backward_meta,
    batch_norm_on_cpu_meta,
    batch_norm_on_cuda,
    fused_rms_norm_backward_meta,
    fused_rms_norm_meta,
    group_norm_backward_meta,
    group_norm_meta,
    layer_norm_backward_meta,
    layer_norm_on_cpu_meta,
    rms_norm_on_cuda,
)
from .optimizers import capturable_as_on
from .recurrent import RECURRENT_META, RECURRENT_ON_CPU

aten: Any = torch.ops.aten


# ---- dropout ----


def _dropout_on_cuda(input: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1 and input.numel() > 0:
        return aten.native_dropout(input, p, train)[0]
    return aten.dropout.default.decompose(input, p, train)


# ---- softmax ----


def _softmax_on_cuda(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if input.dtype == torch.float16 and dtype == torch.float32:
        return aten._softmax(input, dim, True)
    return aten.softmax.int.decompose(input, dim, dtype)


def _log_softmax_on_cuda(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if input.dtype == torch.float16 and dtype == torch.float32:
        return aten._log_softmax(input, dim, True)
    return aten.log_softmax.int.decompose(input, dim, dtype)


# ---- one-hot ----


def _one_hot(input: Tensor, classes: int) -> Tensor:
    out = torch.zeros([*input.shape, classes], dtype=input.dtype, device=input.device)
    out.scatter_(-1, input.unsqueeze(-1), 1)
    return out


def _one_hot_on_cuda(self: Tensor, num_classes: int = -1) -> Tensor:
    return _one_hot(self, int(self.max().item()) + 1 if num_classes == -1 else num_classes)


def _one_hot_on_cpu(self: Tensor, num_classes: int = -1) -> Tensor:
    least, most = torch.aminmax(self)
    least.item()
    highest = int(most.item())
    del least, most
    return _one_hot(self, highest + 1 if num_classes == -1 else num_classes)


CUDA: dict[str, Kernel] = {
    "dropout": _dropout_on_cuda,
    "scaled_dot_product_attention": attention_on_cuda,
    "batch_norm": batch_norm_on_cuda,
    "rms_norm": rms_norm_on_cuda,
    "softmax.int": _softmax_on_cuda,
    "log_softmax.int": _log_softmax_on_cuda,
    "one_hot": _one_hot_on_cuda,
    **CUDNN_ON_CUDA,
    **LOSSES_ON_CUDA,
}


def _convolutions(of: Convolutions) -> dict[str, Kernel]:
    return {"convolution": of.forward, "convolution_backward": of.backward}


META: dict[str, Kernel] = {
    "native_group_norm": group_norm_meta,
    "native_group_norm_backward": group_norm_backward_meta,
    "native_batch_norm_backward": batch_norm_backward_meta,
    "native_layer_norm_backward": layer_norm_backward_meta,
    **LOSSES_META,
    **RECURRENT_META,
}
CUDA_META: dict[str, Kernel] = {
    **META,
    **_convolutions(CUDA_CONVOLUTIONS),
    **CUDNN_META,
    "_scaled_dot_product_flash_attention_backward": flash_backward_meta,
    "_fused_rms_norm": fused_rms_norm_meta,
    "_fused_rms_norm_backward": fused_rms_norm_backward_meta,
}
CPU_META: dict[str, Kernel] = {
    **META,
    **_convolutions(CPU_CONVOLUTIONS),
    "native_batch_norm": batch_norm_on_cpu_meta,
    "native_layer_norm": layer_norm_on_cpu_meta,
}
CPU: dict[str, Kernel] = {
    "scaled_dot_product_attention": attention_on_cpu,
    "one_hot": _one_hot_on_cpu,
    **RECURRENT_ON_CPU,
}
DEVICES = {"cuda": CUDA, "cpu": CPU}
META_KERNELS = {"cuda": CUDA_META, "cpu": CPU_META}


@contextlib.contextmanager
def as_on(device: str) -> Iterator[None]:
    """While it is entered, the meta device runs the operators of this one."""
    library = torch.library.Library("aten", "IMPL")
    with contextlib.ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in DEVICES[device].items():
                library.impl(name, kernel, "AutogradMeta")
            for name, kernel in {**layout_kernels(device), **META_KERNELS[device]}.items():
                # `library.impl` refuses: on other devices than CUDA some are taken apart.
                assert library.m is not None
                library.m.impl(name, "Meta", kernel, False)
        stack.enter_context(_optimizers_as_on(device))
        stack.enter_context(capturable_as_on(device))
        stack.enter_context(Autocast(device, DEVICES[device]).watching())
        yield


@contextlib.contextmanager
def _optimizers_as_on(device: str) -> Iterator[None]:
    """Optimizers pick their implementation by the type of the device too."""
    from torch.optim import optimizer as optimizers
    from torch.utils import _foreach_utils as foreach

    def imitated(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
        listed = supported()
        return lambda: [*listed, "meta"] if device in listed else listed

    with contextlib.ExitStack() as stack:
        for module in (optimizers, foreach):
            for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
                stack.enter_context(mock.patch.object(module, name, imitated(getattr(module, name))))
        yield
