"""Optimizers on the meta device: the first step, in which they make their state, and numbers that they look at."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._model.trees import tensors_in

from .contents import Operation
from .errors import CaptureError
from .shapes import ListKernels
from .values import Values

READ = torch.ops.aten._local_scalar_dense.default
NUMBERS = "numbers that the optimizer computes from weights or gradients are taken as 1"


def assume_number(values: Values, args: Any, out: Any) -> None:
    """Gives a number that an optimizer has computed from weights or gradients a value, for it may look at it: Adafactor
    scales its steps by the weights. Whatever it is, it stays one number."""
    if not (isinstance(out, Tensor) and out.is_meta and out.dim() == 0 and out.is_floating_point()):
        return
    if out.untyped_storage().nbytes() != out.element_size():
        return
    if not values.is_known(out) or any(hasattr(tensor, "_rematic_assumed") for tensor in tensors_in(args)):
        dtype = out.dtype
        one = Operation(
            lambda: torch.ones((), dtype=dtype), (), {}, assume=lambda: values.assumptions.add(NUMBERS)
        )
        values.hold(out.untyped_storage(), one.makes(0, out))
        out._rematic_assumed = True  # type: ignore[attr-defined]


def assume_read(values: Values, func: Any, args: Any) -> None:
    """The same for a number that was made without an operator, before it is read. A counter on the CPU reads as it was before
    this step: what stands for it was counted up."""
    if func is READ and not args[0].is_meta:
        values.is_current(args[0])
    if func is READ and not values.is_known(args[0]):
        assume_number(values, (), args[0])


class _Numbers(TorchDispatchMode):
    """What `assume_number` says, where nothing is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._values = Values()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assume_read(self._values, func, args)
        out = self._values.run(func, args, kwargs or {})
        assume_number(self._values, args, out)
        return out


def take_first_step(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer makes its state for the gradients that are there."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise CaptureError(
            "LBFGS runs the model inside its step, as often as its search asks for, so there is no one step to capture; "
            "take another optimizer, or optimizer=False to leave it out"
        )
    try:
        with ListKernels(), _Numbers():
            optimizer.step()
    except Exception as error:
        if _MIXED in str(error):
            raise CaptureError(
                f"{name} steps for all parameters at once, of which some are spread over ranks and others are not ({error}); torch "
                "refuses this too: spread all parameters, as with SequenceParallel for norms, or give an optimizer with foreach=False"
            ) from error
        raise CaptureError(
            f"{name} cannot take its first step on the meta device ({type(error).__name__}: {error}); take another "
            "optimizer, or optimizer=False to leave it out"
        ) from error
    optimizer.zero_grad()


# What torch says of it.
_MIXED = "mixed torch.Tensor and DTensor"
_CAPTURABLE = "_get_capturable_supported_devices"


@contextlib.contextmanager
def capturable_as_on(device: str) -> Iterator[None]:
    """While it is entered, optimizers with `capturable=True` take the meta device for this one."""
    listed = [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]
    modules = [module for module in listed if callable(getattr(module, _CAPTURABLE, None))]
    original = getattr(sys.modules["torch.optim.optimizer"], _CAPTURABLE)

    def supported(*args: Any, **kwargs: Any) -> list[str]:
        listed = original(*args, **kwargs)
        return [*listed, "meta"] if device in listed else listed

    for module in modules:
        setattr(module, _CAPTURABLE, supported)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, _CAPTURABLE, original)
