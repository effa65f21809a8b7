"""What calls of a run hand on to each other besides what they return: buffers that they share, and objects beside the model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import rematic
from plans import WIDTH
from reality import peaks
from test_apply_runs import TOLERANCE, least_budget, sgd, step_of, trained


class Shared(nn.Module):
    """What several layers read and one of them changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(WIDTH))


class Reading(nn.Module):
    def __init__(self, shared: Shared, changes: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.shared, self.changes = shared, changes

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            with torch.no_grad():
                self.shared.level.mul_(0.9)
            return torch.tanh(self.linear(x))
        return torch.tanh(self.linear(x) + self.shared.level)


def test_a_buffer_that_one_call_changes_and_the_next_ones_read() -> None:
    torch.manual_seed(0)
    shared = Shared()
    model = nn.Sequential(*(Reading(shared, changes=at == 8) for at in range(12)))
    x = torch.randn(256, WIDTH)
    step = step_of(x, lambda out: out.square().mean())
    weights = copy.deepcopy(model.state_dict())
    expected = trained(model, step)
    model.load_state_dict(weights)
    trace = rematic.capture(model, x, device="cpu", optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    calls = 0
    for share in range(1, 10):
        plan = rematic.plan(trace, trace.peak() - share * (trace.peak() - least_budget(trace)) // 10)
        calls += any(("8" in region.module) and region.then for region in plan.regions)
        model.load_state_dict(weights)
        rematic.apply(model, plan)
        found = trained(model, step)
        rematic.remove(model)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), share
    assert calls


class Beside(nn.Module):
    """Hands something on besides what it returns."""

    def __init__(self, box: dict[str, Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.box = box

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        y = y + self.box["last"] if self.box else y
        self.box["last"] = y * 0.5
        return y


class Besides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box: dict[str, Tensor] = {}
        self.layers = nn.ModuleList(Beside(self.box) for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        self.box.clear()
        return x


def test_what_a_call_finds_elsewhere_of_an_earlier_one_is_in_no_run_with_it() -> None:
    torch.manual_seed(0)
    model, x = Besides(), torch.randn(512, 64)
    step = step_of(x, lambda out: out.square().mean())
    trace = rematic.capture_step(lambda model, optimizer: step(model, optimizer), model, sgd(model), device="cpu")
    kernels = {op.name.split(".")[0] for op in trace.ops}
    lowest = least_budget(trace)
    for budget in (lowest, (lowest + trace.peak()) // 2):
        plan = rematic.plan(trace, budget)
        rematic.apply(model, plan)
        optimizer = sgd(model)
        real, _ = peaks(lambda: step(model, optimizer), model, x, kernels)  # noqa: B023
        rematic.remove(model)
        assert real <= (1 + TOLERANCE) * plan.peak, (real, plan.peak)
