"""Optimizers by the command's names, with PyTorch's default settings."""

from __future__ import annotations

from typing import Any, Literal

import torch

from .request import Refused

FUSED = "-fused"
ADAPTIVE = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
MOMENTUM = {"sgd": 0.0, "sgd-momentum": 0.9}
# It counts for nothing here, and has no default in every version of PyTorch.
LEARNING_RATE = 1e-3


def optimizer_of(name: str) -> Any | Literal[False]:
    """A function from parameters to the optimizer; False for none."""
    if name == "none":
        return False
    kind = name.removesuffix(FUSED)
    how: dict[str, Any] = {"fused": True} if name.endswith(FUSED) else {"foreach": True}
    if kind in ADAPTIVE:
        return lambda parameters: ADAPTIVE[kind](parameters, lr=LEARNING_RATE, **how)
    if kind in MOMENTUM:
        return lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM[kind], **how)
    known = ", ".join([*ADAPTIVE, *MOMENTUM, "each with -fused, and none"])
    raise Refused(f"the optimizer {name} is not captured; take one of {known}")
