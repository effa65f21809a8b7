"""One model of the zoo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Build = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

# Why the kernels of a model take memory while they run that no tensor of the step holds. It is left out of what is
# compared with the promise.
CONVOLUTIONS = "oneDNN copies a convolution's operands into its own layouts"
ATTENTION = "attention's backward on the CPU takes buffers"
NORMS = "layer norm's backward on the CPU takes a buffer"


LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model that its own library builds, and a batch for it.

    Where weights decide what a step does (which boxes a detector keeps, which queries are matched), a step moves the weights
    and so the next step's shapes: nothing could be compared with the step that was captured. `by_weights` says what they decide;
    such a model trains with a learning rate of 0. Gradients, buffers and generators are compared all the same.
    """

    name: str
    build: Callable[[str], Build]
    # Why its kernels take memory of their own, if they do.
    scratch: str = ""
    # Columns that are known to fail, each with its reason.
    exceptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # What weights decide, if the shapes of a step hang on it.
    by_weights: str = ""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0 if self.by_weights else LEARNING_RATE)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(batch: int = 4, length: int = 64, vocabulary: int = 256, least: int = 3, seed: int = 0) -> Tensor:
    """Tokens, none of which is special."""
    return torch.randint(least, vocabulary, (batch, length), generator=generator(seed))


def floats(*shape: int, seed: int = 0) -> Tensor:
    """Pixels, sound, or whatever else is a number."""
    return torch.randn(*shape, generator=generator(seed))


def classes(batch: int, count: int) -> Tensor:
    return torch.arange(batch) % count
