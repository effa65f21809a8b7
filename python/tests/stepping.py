"""Steps of training as functions: what is captured of one, and what really happens in it on the CPU."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import memtracker
import rematic
from canonical import timeline
from reality import TOLERANCE, Ran, peaks, sgd
from rematic._capture.step import document as capture
from rematic._capture.step import loss_of as _loss_of

Step = Callable[[nn.Module, Any], Any]


def tensors_of(*modules: nn.Module) -> list[Tensor]:
    return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]


def check_step(step: Step, model: nn.Module, optimizer: Any, *others: Any) -> rematic.Trace:
    """The peak of a captured step is that of a real one on the CPU, but for what kernels take while they run. `others` are
    tensors that are there besides the model's."""
    trace = rematic.capture_step(step, model, optimizer, device="cpu")
    kernels = {op.name.split(".")[0] for op in trace.ops}
    held: list[Any] = [None]

    def run() -> None:
        held[0] = step(model, optimizer)

    with Ran():
        _, settled = peaks(run, model, others, kernels)
    assert abs(settled - trace.peak()) <= TOLERANCE * trace.peak(), (settled, trace.peak())
    return trace


def loss_of(output: Any) -> Tensor:
    return _loss_of(output, None)


def check_model(build: Callable[[], nn.Module], *args: Any, tracked: bool = True) -> None:
    """A captured model takes after every operator what MemTracker counts on the CPU, its peak is the real one, and under a
    plan for the least budget its gradients are the same to the bit."""
    torch.manual_seed(0)
    model = build()
    document = capture(model, *args, device="cpu", optimizer=sgd)
    if tracked:
        _, real = memtracker.track(
            lambda _: (copy.deepcopy(model), args, {}), "cpu", loss_of, sgd, with_modules=False, real=True
        )
        assert [(op, total) for op, _, total in timeline(json.loads(document), 1)] == real
    trace = rematic.Trace.from_bytes(document)
    plan = least_plan(trace)
    for peak, given in ((trace.peak(), None), (plan.peak, plan)):
        check_peak(copy.deepcopy(model), trace, peak, given, args)
    plain, planned = (gradients(copy.deepcopy(model), given, args) for given in (None, plan))
    assert all(torch.equal(*pair) for pair in zip(plain, planned, strict=True))


def least_plan(trace: rematic.Trace) -> rematic.Plan:
    try:
        plan = rematic.plan(trace, 1)
    except rematic.Infeasible as infeasible:
        plan = rematic.plan(trace, infeasible.least_budget)
    assert plan.regions and plan.peak < trace.peak()
    return plan


def check_peak(
    model: nn.Module, trace: rematic.Trace, predicted: int, plan: rematic.Plan | None, args: tuple[Any, ...]
) -> None:
    if plan is not None:
        rematic.apply(model, plan)
    optimizer = sgd(model.parameters())
    kernels = {op.name.split(".")[0] for op in trace.ops}
    with Ran():
        _, settled = peaks(functools.partial(_train, model, optimizer, args, [None]), model, args, kernels)
    assert abs(settled - predicted) <= TOLERANCE * predicted, (settled, predicted)


def _train(model: nn.Module, optimizer: Any, args: tuple[Any, ...], held: list[Any]) -> None:
    held[0] = model(*args)
    loss_of(held[0]).backward()
    optimizer.step()
    optimizer.zero_grad()


def gradients(model: nn.Module, plan: rematic.Plan | None, args: tuple[Any, ...]) -> list[Tensor]:
    if plan is not None:
        rematic.apply(model, plan)
    torch.manual_seed(1)
    loss = loss_of(model(*args))
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
