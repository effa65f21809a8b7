"""Tensors with given layouts."""

from __future__ import annotations

import math

import torch

Layout = tuple[str, list[int], list[int]]

# As traces spell them.
DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8": torch.float8_e4m3fn, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip


def elements(layout: Layout) -> int:
    """How many elements its storage has."""
    _, shape, strides = layout
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def storage_bytes(layout: Layout) -> int:
    """How large its storage is."""
    return elements(layout) * DTYPES[layout[0]].itemsize


def on_meta(layout: Layout) -> torch.Tensor:
    """A tensor without data."""
    dtype, shape, strides = layout
    return torch.empty_strided(shape, strides, dtype=DTYPES[dtype], device="meta")


def make(layout: Layout, device: torch.device, *, bound: int, positive: bool) -> torch.Tensor:
    """A tensor with values like those of training: numbers around zero (or above it), masks, and indices below a bound."""
    name, shape, strides = layout
    dtype, count = DTYPES[name], elements(layout)
    if dtype is torch.bool:
        storage = torch.randint(0, 2, (count,), device=device).to(dtype)
    elif dtype.is_complex:
        storage = torch.randn(count, dtype=dtype, device=device)
    elif dtype.is_floating_point:
        wide = dtype if dtype.itemsize > 1 else torch.float32
        low = 0.1 if positive else -1.0
        storage = torch.empty(count, dtype=wide, device=device).uniform_(low, 1.0).to(dtype)
    else:
        largest = min(bound, torch.iinfo(dtype).max)
        storage = torch.randint(0, max(largest, 1), (count,), device=device).to(dtype)
    return storage.as_strided(shape, strides)


def same_layout(tensor: torch.Tensor, layout: Layout) -> bool:
    """Whether a tensor has a layout; strides of extents up to 1 say nothing."""
    return same_shape(tensor, layout) and all(
        ours == theirs for extent, ours, theirs in zip(tensor.shape, tensor.stride(), layout[2], strict=True) if extent > 1
    )


def same_shape(tensor: torch.Tensor, layout: Layout) -> bool:
    """Whether type and shape are those of a layout."""
    return tensor.dtype == DTYPES[layout[0]] and list(tensor.shape) == layout[1]


def product(shape: list[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)
