"""Step functions move their batch to a device that this machine need not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META = torch.device("meta")


# Makers of floats that no program looks at. Others, as `torch.rand`, may decide what is done.
_FLOATS = (torch.randn, torch.zeros, torch.ones, torch.empty)


# What needs a gradient gets it from the model's operators.
_NEEDS_GRADIENT = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


class Elsewhere(TorchFunctionMode):
    """Sends what is made on or moved to the imitated device to the one that stands for it."""

    def __init__(self, device: str, bring: Callable[[torch.Tensor], None], there: torch.device = META) -> None:
        super().__init__()
        self._device = device
        self._there = there
        # Turns a real tensor into one on the device.
        self._bring = bring

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda and self._device == "cuda":
            return args[0].to(self._there)
        if func in _NEEDS_GRADIENT and all(args[1:]) and not args[0].is_meta:
            self._bring(args[0])
        if "device" in kwargs and self._is_meant(kwargs["device"]):
            kwargs = {**kwargs, "device": self._there}
        elif func in _FLOATS and "device" not in kwargs and self._is_there(kwargs):
            kwargs = {**kwargs, "device": self._there}
        elif func is torch.Tensor.to and len(args) > 1 and self._is_meant(args[1]):
            args = (args[0], self._there, *args[2:])
        return func(*args, **kwargs)

    def _is_there(self, options: dict[str, Any]) -> bool:
        """Whether a tensor for which no device is named lies on the imitated one: on the CPU, and where it needs a
        gradient, which the model's operators give."""
        dtype = options.get("dtype")
        return options.get("requires_grad", False) or (self._device == "cpu" and (dtype is None or dtype.is_floating_point))

    def _is_meant(self, device: Any) -> bool:
        if isinstance(device, str):
            return device.split(":")[0] == self._device
        return isinstance(device, torch.device) and device.type == self._device
