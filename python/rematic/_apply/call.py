"""A call of a checkpointed module, for the first time and again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .snapshot import Snapshot, tensors_among

_jit: Any = torch.jit
# What ends a recomputation once all that was asked for is there.
STOP: type[Exception] | None = getattr(torch.utils.checkpoint, "_StopRecomputationError", None)


class Call:
    """A call of a module: with its arguments as they are the first time, and as they were then when it runs again."""

    def __init__(
        self,
        forward: Callable[..., Any],
        snapshot: Snapshot,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        again: Any = None,
    ) -> None:
        self._forward = forward
        self._snapshot = snapshot
        # What is followed when it runs again, if that may have to begin once more.
        self._again = again
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)

    def __call__(self, *_: Tensor) -> Any:
        if self._given is not None:
            args, kwargs = self._given
            # They must not outlive the call: a list goes on to grow.
            self._given = None
            return run_forward(self._forward, args, kwargs)
        self._snapshot.look_for_changes()
        return self._repeat() if self._again is None else self._again.repeated(self._repeat)

    def _repeat(self) -> Any:
        with self._snapshot.restored() as (args, kwargs):
            return run_forward(self._forward, args, kwargs)


def run_forward(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs a forward, for the first time or again."""
    try:
        # Otherwise TorchScript runs other operators from one time to the next, as it learns what it is given.
        with _jit.optimized_execution(False):
            return forward(*args, **kwargs)
    except RuntimeError as error:
        if STOP is not None and STOP.__name__ in str(error):
            # Recomputation ended inside of TorchScript, which makes an error of its own of every other.
            raise STOP from error
        raise


def anchors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What checkpointing is given in place of the arguments: empty tensors on their devices, by which it finds the device
    that autocast is for. It would refuse arguments that are changed in place later, though nothing may read them again."""
    devices = dict.fromkeys(tensor.device for tensor in tensors_among((args, kwargs)))
    return [_anchor(device) for device in devices]


@functools.cache
def _anchor(device: torch.device) -> Tensor:
    return torch.empty(0, device=device)
