"""A hook for loops with accelerate's `Accelerator`.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    hook = PlanHook(accelerator, model, optimizer, budget="38GiB")
    for batch in loader:
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor, nn

from rematic._apply.batches import calls_of
from rematic._apply.wrapping import AUDITED_STEPS
from rematic._capture.arguments import check_loss
from rematic._capture.step import loss_of
from rematic._core import Plan

from ._planning import Planning, is_compiled, optimizer_of


class PlanHook:
    """Makes a prepared model fit a budget, or the GPU it is on, when it is called for training for the first time.

    The step is the model's forward as accelerate has prepared it, the `loss` of its output as in `rematic.auto`, `backward`, the
    optimizer's step and `zero_grad`; where gradients are accumulated, one that finds gradients. It is planned again when a batch is
    larger than those before. `budget`, `device`, `variants` and `audit` are those of `rematic.auto`; the CPU needs a budget. Without
    `required`, training goes on where there can be no plan, and a warning says why. `remove` takes hook and plan off.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        optimizer: Any,
        *,
        budget: int | str | None = None,
        device: Any = None,
        loss: Callable[[Any], Tensor] | None = None,
        required: bool = True,
        variants: Sequence[Any] = (),
        audit: int = AUDITED_STEPS,
    ) -> None:
        check_loss(loss)
        self._accelerator = accelerator
        self._loss = loss
        self._optimizer = optimizer
        self._variants = variants
        self._planning = Planning(get_logger(__name__), budget, device, required, audit)
        self._model = model
        # A forward that accelerate has put into the instance, or the plan's.
        self._previous: Any = None
        self._is_on = False
        compiled = (
            "The model is compiled, and the compiler decides by itself what to keep, so that a plan would promise nothing; prepare "
            "the model without dynamo_backend, or leave the hook away"
        )
        if not self._planning.refuse_if({compiled: is_compiled(model)}):
            self._put_on()

    @property
    def plan(self) -> Plan | None:
        """The plan that the model follows."""
        return self._planning.plan

    def remove(self) -> None:
        """Takes hook and plan off."""
        self._take_off()
        self._planning.remove()

    def _put_on(self) -> None:
        """Puts a forward of its own into the model: a plan that comes in a hook would come too late for this call."""
        self._previous = self._model.__dict__.get("forward")
        self._model.__dict__["forward"] = self._forward
        self._is_on = True

    def _take_off(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        if self._previous is None:
            del self._model.__dict__["forward"]
        else:
            self._model.__dict__["forward"] = self._previous

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Plans before a batch that is larger than those before, and runs the model."""
        if self._model.training and torch.is_grad_enabled() and self._planning.is_due((args, kwargs)):
            self._make(args, kwargs)
        if self._previous is None:
            return type(self._model).forward(self._model, *args, **kwargs)
        return self._previous(*args, **kwargs)

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        accumulates = self._accelerator.gradient_accumulation_steps > 1
        steps = {
            name: _TrainingStep(self._accelerator, self._loss, call, accumulates)
            for name, call in calls_of(self._model, args, kwargs, [*self._variants]).items()
        }
        self._take_off()
        try:
            self._planning.make(self._model, steps, optimizer_of(self._optimizer), (args, kwargs))
        finally:
            self._put_on()


class _TrainingStep:
    """A step of a loop as accelerate's documentation has it."""

    def __init__(self, accelerator: Any, loss: Callable[[Any], Tensor] | None, call: Any, accumulates: bool) -> None:
        self.accelerator = accelerator
        self.loss = loss
        self.call = call
        self.accumulates = accumulates

    def __call__(self, model: nn.Module, optimizer: Any) -> Any:
        args, kwargs = self.call
        output = model(*args, **kwargs)
        self.accelerator.backward(loss_of(output, self.loss))
        optimizer.step()
        if not self.accumulates:
            optimizer.zero_grad()
        return output
