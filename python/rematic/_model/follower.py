"""What a module's forward is while it follows a plan."""

from __future__ import annotations

from torch import nn

from rematic._core import PlanError


class Follower:
    """Stands in for the forward of a module that follows a plan."""


def check_free(model: nn.Module) -> None:
    """Refuses a model that follows a plan already."""
    for path, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Follower):
            name = f"`{path}`" if path else f"the {type(model).__name__}"
            raise PlanError(f"A plan is already applied to {name}; call rematic.remove(model) first")
