"""Tensors in nested arguments and results: tuples, lists, dictionaries, data classes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nested value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        # How many sequences there are at each step is said on the CPU, wherever the rest is.
        yield from (tensor for tensor in (value[0], *value[2:]) if tensor is not None)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def device_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors on the device in a nested value."""
    return [tensor for tensor in tensors_in(value) if tensor.is_meta]


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of a nested value with every tensor changed. What holds no tensor stays the same object."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        data = change(value.data)
        indices = [None if index is None else change(index) for index in value[2:]]
        return PackedSequence(data, value.batch_sizes, *indices)
    if isinstance(value, tuple):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [map_tensors(item, change) for item in value]
    if isinstance(value, Mapping):
        if not any(True for _ in tensors_in(value)):
            return value
        mapping: Any = copy.copy(value)
        for key, item in value.items():
            mapping[key] = map_tensors(item, change)
        return mapping
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not any(True for _ in tensors_in(value)):
            return value
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, map_tensors(getattr(value, field.name, None), change))
        return changed
    return value
