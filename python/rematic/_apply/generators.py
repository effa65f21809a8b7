"""The state of random number generators, so that what is drawn again is what was drawn."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

Source = torch.Generator | torch.device


def source_of(args: Any, kwargs: Any) -> Source:
    """Where an operator draws its numbers from: the generator that it is given, or that of its device."""
    if kwargs:
        given = kwargs.get("generator")
        if given is not None:
            return given
    for value in args:
        if isinstance(value, Tensor):
            return value.device
    return torch.device((kwargs or {}).get("device") or "cpu")


def state_of(source: Source) -> bytes:
    """A generator's state. As bytes: tensors would be counted as the step's memory."""
    if isinstance(source, torch.Generator):
        state = source.get_state()
    elif source.type == "cpu":
        state = torch.get_rng_state()
    else:
        state = torch.get_device_module(source).get_rng_state(source)
    # By its address: other ways run operators, which would be seen as the step's.
    return ctypes.string_at(state.data_ptr(), state.numel())


def set_state(source: Source, state: bytes) -> None:
    """Puts a generator back into a state."""
    tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    if isinstance(source, torch.Generator):
        source.set_state(tensor)
    elif source.type == "cpu":
        torch.set_rng_state(tensor)
    else:
        torch.get_device_module(source).set_rng_state(tensor, source)
