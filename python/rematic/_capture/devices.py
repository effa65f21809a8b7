"""Step functions move their batch to a device that this machine need not have."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META = torch.device("meta")


class Elsewhere(TorchFunctionMode):
    """Sends what is made on or moved to the imitated device to the meta device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda and self._device == "cuda":
            return args[0].to(META)
        if "device" in kwargs and self._is_meant(kwargs["device"]):
            kwargs = {**kwargs, "device": META}
        elif func is torch.Tensor.to and len(args) > 1 and self._is_meant(args[1]):
            args = (args[0], META, *args[2:])
        return func(*args, **kwargs)

    def _is_meant(self, device: Any) -> bool:
        if isinstance(device, str):
            return device.split(":")[0] == self._device
        return isinstance(device, torch.device) and device.type == self._device
