"""What the integrations share: when a plan is made, for what, and what happens where there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from rematic._apply.promise import size_in_words
from rematic._apply.wrapping import check_audit, remove
from rematic._auto import make_follow
from rematic._capture.arguments import OptimizerChoice
from rematic._capture.step import capture_step
from rematic._core import Infeasible, Plan, PlanError, RematicError
from rematic._device import kind_of
from rematic._model.trees import map_tensors, tensors_in

# The model and its optimizer, which are copies without data, to what the loop holds until its next step.
Step = Callable[[nn.Module, Any], Any]


class Planning:
    """The plan of one model in training: made before the first batch, and again before one that is larger."""

    def __init__(self, logger: Any, budget: int | str | None, device: Any, required: bool, audit: int) -> None:
        check_audit(audit)
        self._logger = logger
        self._budget = budget
        self._device = device
        self._required = required
        self._audit = audit
        self._model: nn.Module | None = None
        # The elements of the largest batch that a plan was made for.
        self._largest = -1
        self.plan: Plan | None = None

    def is_due(self, batch: Any) -> bool:
        """Whether the batch is larger than those that were planned for."""
        return _elements(batch) > self._largest

    def make(
        self,
        model: nn.Module,
        steps: Mapping[str, Step],
        optimizer: OptimizerChoice,
        batch: Any,
        where: torch.device | None = None,
    ) -> None:
        """Plans for steps with this batch, which are variants by their names, and makes the model follow, on the device where
        it is, or will be.

        Where no plan is possible it raises, before anything is trained, unless plans are optional. Later, for a larger
        batch, the plan that goes lowest is taken.
        """
        is_first = self._largest < 0
        self.remove()
        self._largest = _elements(batch)
        captures = {name: functools.partial(capture_step, step, model, optimizer) for name, step in steps.items()}
        where = where or next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        follow = functools.partial(make_follow, model, captures, device=self._place(where), audit=self._audit)
        try:
            plan = follow(budget=self._budget)
        except Infeasible as error:
            if is_first:
                self._refuse(error)
                return
            self._logger.warning(f"Rematic: a larger batch does not fit. {error}. It trains with the plan that goes lowest.")
            plan = follow(budget=error.least_budget)
        except RematicError as error:
            self._refuse(error)
            return
        self.plan, self._model = plan, model
        self._logger.info(f"Rematic: {summary(plan)}")

    def remove(self) -> None:
        """Takes the plan off the model, if there is one."""
        if self._model is not None:
            remove(self._model)
            self._model = None

    def begin(self) -> None:
        """Training begins, perhaps with other batches than the last time."""
        self.remove()
        self._largest = -1

    def refuse_if(self, reasons: Mapping[str, bool]) -> bool:
        """Refuses where one of the reasons holds. Gives whether training goes on without a plan."""
        for reason, holds in reasons.items():
            if holds:
                self._largest = _ANY
                self._refuse(PlanError(reason))
                return True
        return False

    def _refuse(self, error: RematicError) -> None:
        if self._required:
            raise error
        # No later batch is easier to plan for.
        self._largest = _ANY
        self._logger.warning(f"Rematic: training goes on without a plan. {error}")

    def _place(self, where: torch.device) -> Any:
        """The device to plan for: the one that the model is on, or a data sheet for it."""
        if self._device is None:
            return where
        kind = kind_of(self._device)
        if kind != where.type:
            raise PlanError(
                f"The model trains on {_words(where.type)}, and the plan is asked for `{self._device}`, whose operators are others; "
                "leave device= away, or move the training"
            )
        return self._device


# More than any batch has.
_ANY = 1 << 62


def summary(plan: Plan) -> str:
    """A plan in one line."""
    if plan.outcome == "fits":
        return f"the step fits as it is: peak {size_in_words(plan.peak)} of {size_in_words(plan.budget)}"
    share = 100 * plan.recompute_ms / plan.step_ms if plan.step_ms else 0.0
    return (
        f"peak {size_in_words(plan.baseline_peak)} -> {size_in_words(plan.peak)} of {size_in_words(plan.budget)}; {len(plan.regions)} modules recompute "
        f"a part of what they run, which takes {share:.1f} % of a step"
    )


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile is around the model, or in it."""
    return any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules())


def optimizer_of(optimizer: Any) -> Any:
    """The optimizer of torch inside of what a library puts around it; False for none."""
    while not type(optimizer).__module__.startswith("torch.") and isinstance(
        getattr(optimizer, "optimizer", None), torch.optim.Optimizer
    ):
        optimizer = optimizer.optimizer
    return False if optimizer is None else optimizer


def single(batch: Any) -> Any:
    """The first sample of a batch."""
    size = next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim()), 0)
    return map_tensors(batch, lambda tensor: tensor[:1] if tensor.dim() and tensor.shape[0] == size else tensor)


def _elements(batch: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(batch))


def _words(kind: str) -> str:
    return "the CPU" if kind == "cpu" else kind

