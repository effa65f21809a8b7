"""PyTorch's own switches that decide what an operator does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_cuda: Any = torch.backends.cuda
_Switch = tuple[Callable[[], Any], Callable[[Any], Any]]


def _precision() -> str | None:
    """How precise products in single precision are. None if backends were told one by one: torch then refuses to say."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_precision(precision: str | None) -> None:
    if precision is not None:
        torch.set_float32_matmul_precision(precision)


def _deterministic() -> tuple[bool, bool]:
    return torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()


def _set_deterministic(switch: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(switch[0], warn_only=switch[1])


_SWITCHES: tuple[_Switch, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (_precision, _set_precision),
    (_deterministic, _set_deterministic),
    (_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    (_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    (_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    (_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
)


class Settings:
    """The switches as they are when it is made."""

    def __init__(self) -> None:
        self._values = [get() for get, _ in _SWITCHES]

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """While it is entered, the switches are as they were."""
        moved: list[tuple[Callable[[Any], Any], Any]] = []
        try:
            for (get, put), value in zip(_SWITCHES, self._values, strict=True):
                present = get()
                if present != value:
                    moved.append((put, present))
                    put(value)
            yield
        finally:
            for put, present in moved:
                put(present)
