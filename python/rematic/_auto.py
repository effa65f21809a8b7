"""Capture, plan and apply in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rematic._apply.batches import calls_of
from rematic._apply.wrapping import AUDITED_STEPS, apply, check_audit
from rematic._capture.errors import CaptureError
from rematic._capture.step import OptimizerChoice, capture
from rematic._core import Plan, PlanError, Trace
from rematic._core import plan as make_plan
from rematic._device import DEFAULT, device_of, gpu, is_torch_name, kind_of, torch_index
from rematic._loss.kinds import LossKind, function_and_kind
from rematic._model.follower import check_free


def auto(
    model: nn.Module,
    *args: Any,
    budget: int | str | None = None,
    device: Any = None,
    loss: Callable[[Any], Tensor] | LossKind | None = None,
    loss_kind: LossKind | None = None,
    optimizer: OptimizerChoice = None,
    world_size: int = 1,
    runs: bool = True,
    host_memory: int | str | None = None,
    host_bandwidth: float | str | None = None,
    variants: Sequence[Any] | None = None,
    eval_mode: bool = False,
    audit: int = AUDITED_STEPS,
    **kwargs: Any,
) -> Plan:
    """Makes one training step of `model(*args, **kwargs)` fit a memory budget: captures it, plans, and applies the plan.

    `device` is a name of `rematic devices`, or torch's; by default, and with "cuda", this machine's GPU, and "h100" without
    one. With "cpu" the step is captured as the CPU runs it. Without a budget, what PyTorch's allocator reserves has to fit the
    device; the CPU needs one. `loss` and `optimizer` are those of `capture`, `world_size` that of `plan`: devices among which parameters, gradients
    and optimizer state are spread; `loss_kind`, or a word as `loss`, says how the cross-entropy of the last layer is computed: "plain"
    (the default), "chunked", or "auto" for the one with which the planned step is faster; `runs`, `host_memory` and `host_bandwidth` are those of `plan`, and `audit` that of `apply`. A model in evaluation mode is refused, unless `eval_mode` says
    that it trains like this. A step that fits as it is has a plan without regions, and nothing is applied. Raises
    `Infeasible` if no plan meets the budget.

    `variants` are further batches that training meets and that run other operators: for each the arguments that differ,
    as `variants=[{"labels": None}, last_batch]`. The plan covers them all. A batch with an `attention_mask` is captured with
    padding and without.
    """
    check_audit(audit)
    check_free(getattr(model, "_orig_mod", model))
    if not eval_mode and isinstance(model, nn.Module) and not any(module.training for module in model.modules()):
        raise CaptureError(
            f"{type(model).__name__} is in evaluation mode, where dropout and batch norm do other things than in training, so "
            "that the plan would not fit the training; call model.train() before rematic.auto, or give eval_mode=True if "
            "it trains like this"
        )
    loss, kind = function_and_kind(loss, loss_kind)
    captures = {
        name: functools.partial(capture, model, *given, loss=loss, loss_kind=kind, optimizer=optimizer, eval_mode=eval_mode, **named)
        for name, (given, named) in calls_of(model, args, kwargs, variants).items()
    }
    limits = {"loss": kind if kind == "auto" else None, "runs": runs, "host_memory": host_memory, "host_bandwidth": host_bandwidth}
    return make_follow(model, captures, budget=budget, device=device, world_size=world_size, audit=audit, **limits)


def make_follow(
    model: nn.Module,
    captures: Mapping[str, Callable[..., Trace]],
    *,
    budget: int | str | None,
    device: Any,
    world_size: int = 1,
    audit: int = AUDITED_STEPS,
    **limits: Any,
) -> Plan:
    """Plans for the steps that are captured, each a variant by its name, and applies the plan.

    A capture takes the device whose operators run; `limits` are those of `plan`.
    """
    kind = "cuda" if device is None else kind_of(device)
    sheet = device
    usable = None
    if kind == "cpu":
        if budget is None:
            raise PlanError('How much memory the CPU may use is not known; give it as budget=, like "8GiB"')
        sheet = DEFAULT
    elif device is None or is_torch_name(device):
        properties = gpu(None if device is None else torch_index(device))
        sheet = DEFAULT if properties is None else device_of(properties.name, properties.total_memory)
        usable = None if properties is None else properties.total_memory
    traces: dict[str, Trace] = {}
    known: set[bytes] = set()
    for name, captured in captures.items():
        trace = captured(device=kind if kind == "cpu" else sheet)
        content = trace.to_bytes()
        # Equal steps are one variant.
        if content not in known:
            known.add(content)
            traces[name] = trace
    plan = make_plan(traces, budget, device=sheet, world_size=world_size, usable=usable, **limits)
    apply(model, plan, audit=audit)
    return plan
