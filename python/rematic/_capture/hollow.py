"""Tensors of the CPU that hold nothing, for PyTorch to choose kernels by: its choices look at shapes, strides, types and
flags alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Hollow(Tensor):
    """A tensor on the CPU without memory, of another's layout."""

    @staticmethod
    def __new__(cls, tensor: Tensor, requires_grad: bool) -> Hollow:
        return torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype, device="cpu", requires_grad=requires_grad
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"`{func}` reads a tensor without memory")
