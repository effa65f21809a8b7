"""What a capture can be asked for; anything else is refused before the step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from .errors import CaptureError
from .replica import Replica

DEFAULT_LEARNING_RATE = 1e-3
OptimizerChoice = torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | Literal[False] | None


def check_model(model: Any, advice: str) -> None:
    """Refuses what is no module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"`model` is the class {model.__name__}; make a model of it: {model.__name__}(...)")
    raise TypeError(f"`model` must be a torch.nn.Module, but is of type {type(model).__name__}; {advice}")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of what a compiler puts around it; what spreads it over devices is refused."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel):
        raise CaptureError(
            "DataParallel copies the model to every GPU in each step, which cannot be captured; capture its module "
            "(model.module) with the batch of one GPU"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        held = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
        views = "which its gradients are views of" if model.gradient_as_bucket_view else "beside its gradients"
        raise CaptureError(
            f"DistributedDataParallel holds its buckets of gradients, {held:,} bytes, {views}; capture its module "
            f"(model.module), and {'count nothing more' if model.gradient_as_bucket_view else 'leave room for the buckets'}"
        )
    return model


def check_loss(loss: Any) -> None:
    """Refuses a loss that cannot be called."""
    if loss is not None and not callable(loss):
        raise CaptureError(
            f"`loss` must be a function from the model's output to a scalar, but is {loss!r}; give one, as "
            "lambda output: torch.nn.functional.mse_loss(output, target)"
        )


def check_gradients() -> None:
    """Refuses to capture where nothing has gradients."""
    if not torch.is_grad_enabled():
        raise CaptureError(
            "Gradients are off here (torch.no_grad or torch.inference_mode), so there is no backward to capture; "
            "capture outside of it"
        )


def check_optimizer(optimizer: Any) -> None:
    """Refuses what is no choice of an optimizer."""
    if optimizer is None or optimizer is False or isinstance(optimizer, torch.optim.Optimizer) or callable(optimizer):
        return
    raise CaptureError(
        f"`optimizer` cannot be {optimizer!r}; give an optimizer of this model, a function from parameters to one (as "
        "torch.optim.AdamW), False for none, or nothing for Adam"
    )


def made_optimizer(
    choice: OptimizerChoice, model: nn.Module, replica: Replica, device: str
) -> torch.optim.Optimizer | None:
    """The optimizer over the parameters of a copy of the model."""
    if choice is False:
        return None
    if isinstance(choice, torch.optim.Optimizer):
        return replica.optimizer(choice)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    if choice is not None:
        made = choice(parameters)
        check_made(made, parameters)
        return made
    return torch.optim.Adam(parameters, lr=DEFAULT_LEARNING_RATE, foreach=device == "cuda" or None)


def check_made(made: Any, parameters: list[nn.Parameter]) -> None:
    """Refuses what a function from parameters made, if it is no optimizer of them."""
    if not isinstance(made, torch.optim.Optimizer):
        raise CaptureError(f"The function given as `optimizer` must make one, but made a {type(made).__name__}")
    known = {id(parameter) for parameter in parameters}
    others = [
        parameter for group in made.param_groups for parameter in group["params"] if id(parameter) not in known
    ]
    if others:
        raise CaptureError(
            f"The function given as `optimizer` made one with {len(others)} parameters that it was not given; "
            "use its argument, the parameters of the copy that is captured"
        )
