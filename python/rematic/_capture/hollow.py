"""Tensors of the CPU that hold nothing, for PyTorch to choose kernels by: its choices look at shapes, strides, types and
flags alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CPU = torch.device("cpu")


class Hollow(Tensor):
    """A tensor on the CPU without memory, of another's layout."""

    @staticmethod
    def __new__(cls, tensor: Tensor, requires_grad: bool) -> Hollow:
        return torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype, device=_CPU, requires_grad=requires_grad
        )

    # Torch's types have it as a plain function, and torch calls it as a method of the class.
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"`{func}` reads a tensor without memory")
