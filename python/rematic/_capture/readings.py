"""What a step reads of its tensors, in order.

A real run of the step writes down every reading with its result. The captured run makes the same readings, for it runs the
same code, and takes the results of those that it cannot know itself. Both count all of them, so that the n-th of one is the
n-th of the other; what was read is compared, and what the captured run knows too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .errors import UnknownValue, current_line

# How much of a step a real run has gone through.
NOTHING, FORWARD, STEP = range(3)

ONE_HOT = "one_hot"
# Functions that bring what a tensor holds to Python or to the CPU, besides operators that do.
HOST = {
    Tensor.cpu: "cpu",
    Tensor.to: "to",
    Tensor.tolist: "tolist",
    Tensor.numpy: "numpy",
    Tensor.__array__: "__array__",
    # How often its kernels look depends on the device.
    torch._C._nn.one_hot: ONE_HOT,
}
# Those that need not read.
MOVES = frozenset(("cpu", "to", ONE_HOT))
MAKING = frozenset((torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor))
MAKES = "torch.tensor"
# What they read makes a text, and steers nothing.
TEXTS = frozenset((Tensor.__repr__, Tensor.__format__))


BACKWARDS = frozenset((Tensor.backward, torch.autograd.backward, torch.autograd.grad))


def differentiate(mode: TorchFunctionMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs a backward with the mode on, for a checkpoint runs forward again in it."""
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return original(*args, **kwargs)

    with mock.patch.object(autograd, "_engine_run_backward", run):
        return func(*args, **kwargs)


class Parted(UnknownValue):
    """The captured run does not read what the real run has read."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            "The two part where code looks at the device, or draws random numbers outside of the model's operators. Leave that "
            "out while the model is captured, or change the model so that shapes and branches do not hang on what it computes.",
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """One reading of a real run."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    # On the CPU. None where nobody can ask for it.
    result: Any

    def __str__(self) -> str:
        shapes = ", ".join(str(shape) for shape in self.shapes)
        return f"`{self.name}` of shape {shapes}" if shapes else f"`{self.name}`"

    def check(self, found: Any) -> None:
        """Refuses a result that the captured run knows otherwise. Numbers with a fraction may be rounded otherwise."""
        if self.result is not None and not _is_alike(self.result, found):
            raise Parted(
                f"A real run of the step, which tells what depends on weights, reads {self} as {_short(self.result)}, and the "
                f"captured one as {_short(found)}"
            )


class Place:
    """Where a captured run is in the readings of a real one, if there is one."""

    def __init__(self, readings: Sequence[Reading] = (), extent: int = NOTHING, can_run: bool = False) -> None:
        self._readings = readings
        self._count = 0
        self._extent = extent
        # Whether there is a real run, or can be one.
        self.can_run = can_run
        # Whether any result was taken.
        self.is_used = False
        # A value that the captured run has met and only a real run, or a longer one, can tell; and where.
        self.missing: UnknownValue | None = None
        self.line: str | None = None

    def check_end(self, extent: int) -> None:
        """The captured run is where the real one ended: it has read as much."""
        if self._extent == extent and self._count < len(self._readings):
            raise Parted(
                f"A real run of the step, which tells what depends on weights, reads {len(self._readings)} values, and the "
                f"captured one {self._count} of them; the next is {self._readings[self._count]}"
            )

    def miss(self, error: UnknownValue) -> None:
        """There is no reading for a value that is not known."""
        if self.can_run and error.is_told_by_run and self.missing is None:
            # The error itself would keep tensors of the step.
            self.missing = error.saying()
            self.line = current_line()

    def next(self, name: str, shapes: tuple[tuple[int, ...], ...]) -> Reading | None:
        """The next reading, which is of this name and these shapes. None if the real run did not get there."""
        number = self._count
        self._count += 1
        if self._extent == NOTHING:
            return None
        here = Reading(name, shapes, None)
        if number >= len(self._readings):
            if self._extent == FORWARD:
                return None
            raise Parted(
                f"A real run of the step, which tells what depends on weights, reads {len(self._readings)} values, and the "
                f"captured one reads {here} after them"
            )
        found = self._readings[number]
        if (found.name, found.shapes) != (name, shapes):
            raise Parted(
                f"A real run of the step, which tells what depends on weights, reads {found} where the captured one reads "
                f"{here} (reading {number + 1} of {len(self._readings)})"
            )
        return found


def shapes_of(args: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors among an operator's arguments."""
    return tuple(tuple(item.shape) for item in args if isinstance(item, Tensor))


def _is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if not isinstance(one, Tensor):
        return isinstance(one, (float, complex)) or one == other
    if one.shape != other.shape:
        return False
    return one.is_floating_point() or one.is_complex() or torch.equal(one, other)


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_short, value))
    if isinstance(value, Tensor):
        return f"values of shape {tuple(value.shape)}"
    return str(value)
