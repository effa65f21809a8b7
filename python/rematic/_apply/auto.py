"""Capture, plan and apply in one call."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rematic._core import Plan, PlanError, RematicWarning, Trace
from rematic._core import plan as make_plan
from rematic._capture.step import OptimizerChoice, capture

from .batches import calls_of
from .wrapping import apply, check_free

DEFAULT_DEVICE = "a100-80"
# How drivers call the devices of `rematic devices`; the first that fits counts. The A100 comes in two sizes under
# names that do not always tell.
_PRODUCTS = (
    (r"\bGB200\b", "gb200"), (r"\bB200\b", "b200"), (r"\bH200\b", "h200"), (r"\bH100.*PCIe", "h100-pcie"),
    (r"\bH100\b", "h100"), (r"\bA100\b", "a100"), (r"\bV100\b", "v100"), (r"\bL40S\b", "l40s"), (r"\bL4\b", "l4"),
    (r"\bA10G\b", "a10g"), (r"\bT4\b", "t4"), (r"\bRTX 3090\b", "rtx-3090"), (r"\bRTX 4090\b", "rtx-4090"),
    (r"\bRTX 5090\b", "rtx-5090"), (r"\bMI250X\b", "mi250x"), (r"\bMI300X\b", "mi300x"), (r"\bMI325X\b", "mi325x"),
    (r"\bMI355X\b", "mi355x"),
)  # fmt: skip
_LARGE_A100 = 60 * 10**9


def auto(
    model: nn.Module,
    *args: Any,
    budget: int | str | None = None,
    device: str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice = None,
    world_size: int = 1,
    variants: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Plan:
    """Makes one training step of `model(*args, **kwargs)` fit a memory budget: captures it, plans, and applies the plan.

    `device` is a name of `rematic devices`; by default this machine's GPU, and "a100-80" without one. With "cpu" the step
    is captured as the CPU runs it. Without a budget it is all of the device's memory; the CPU needs one. `loss` and `optimizer` are those
    of `capture`, `world_size` that of `plan`: devices among which parameters, gradients and optimizer state are spread. A
    step that fits as it is has a plan without regions, and nothing is applied. Raises `Infeasible` if no plan meets the
    budget.

    `variants` are further batches that training meets and that run other operators: for each the arguments that differ,
    as `variants=[{"labels": None}, last_batch]`. The plan covers them all. A batch with an `attention_mask` is captured with
    padding and without.
    """
    check_free(getattr(model, "_orig_mod", model))
    kind = "cpu" if device == "cpu" else "cuda"
    all_of_it: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if device is None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        device = device_of(properties.name, properties.total_memory)
        if budget is None:
            budget = properties.total_memory
            all_of_it = _more_than_promised()
    elif device == "cpu" and budget is None:
        raise PlanError('How much memory the CPU may use is not known; give it as budget=, like "8GiB"')
    elif device is None or device == "cpu":
        device = DEFAULT_DEVICE
    traces: dict[str, Trace] = {}
    known: set[bytes] = set()
    for name, (given, named) in calls_of(model, args, kwargs, variants).items():
        trace = capture(model, *given, loss=loss, optimizer=optimizer, device=kind, **named)
        content = trace.to_bytes()
        if content not in known:
            known.add(content)
            traces[name] = trace
    with all_of_it:
        plan = make_plan(traces, budget, device=device, world_size=world_size)
    apply(model, plan)
    return plan


@contextlib.contextmanager
def _more_than_promised() -> Iterator[None]:
    """Drivers often report some more memory than data sheets promise; what they report is there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the budget of .* is larger than the memory of", RematicWarning)
        yield


def device_of(product: str, memory: int) -> str:
    """The name of a device that the driver calls `product`."""
    for pattern, name in _PRODUCTS:
        if re.search(pattern, product):
            if name == "a100":
                return "a100-80" if memory > _LARGE_A100 else "a100-40"
            return name
    raise PlanError(
        f"This machine's {product} is not among the known devices; give the nearest as device=, of those that "
        "`rematic devices` lists"
    )
