"""What a function makes, without the memory for it.

Tensors that it makes lie on the meta device. How they are made is known, as in a captured step, so that a model that looks at a value
finds it: a mask of ones is one of ones. What is drawn at random has no values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from rematic._model.trees import map_tensors, tensors_in

from .devices import META
from .literals import Literals
from .values import Values

_HOST = torch.device("cpu")
# What changes the place of a tensor and nothing else.
_PLACES = frozenset((Tensor.cpu, Tensor.cuda, Tensor.pin_memory))
# Options of makers that say where, and from which generator.
_OPTIONS = ("device", "pin_memory", "generator")


def sketched(make: Callable[[], Any]) -> Any:
    """What `make` makes. Raises whatever comes of it where a value is asked for that is not known, or that has to be there."""
    values = Values()
    with values, Literals(values, "cpu"), _Makers():
        made = make()
    if all(not tensor.is_meta for tensor in tensors_in(made)):
        return made

    def twin(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        beside = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        if tensor.is_contiguous():
            values.have(beside, tensor.clone())
        return beside.requires_grad_(tensor.requires_grad)

    return map_tensors(made, twin)


class _Makers(TorchFunctionMode):
    """Sends what is made anywhere to the meta device, and leaves there what is moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors():
            kwargs = {key: value for key, value in kwargs.items() if key not in _OPTIONS}
            kwargs["device"] = META
        elif func in _PLACES and args[0].is_meta:
            return args[0]
        elif func is Tensor.cuda:
            return args[0].to(META)
        elif func is Tensor.to:
            to_host = not args[0].is_meta
            args = (args[0], *(_placed(item, to_host) for item in args[1:]))
            if "device" in kwargs:
                kwargs = {**kwargs, "device": _placed(kwargs["device"], to_host)}
        return func(*args, **kwargs)


def _placed(item: Any, to_host: bool) -> Any:
    """The device that is meant in place of one; anything else as it is."""
    if isinstance(item, bool) or not isinstance(item, (str, int, torch.device)):
        return item
    return _HOST if to_host and torch.device(item) == _HOST else META
