"""Blocks that write into views and overwrite tensors: their peaks under plans are those of real steps on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rematic
from reality import Training, check_peak, loss_of, sgd
from rematic._capture.step import document as capture

WIDTH, ROWS = 64, 4096


def overwritten_after(y: Tensor) -> Tensor:
    y[:, 0] = 0
    y.sin_()
    return y


def overwritten_by_two(y: Tensor) -> Tensor:
    y[:, 0] = 0
    y[:, 1].sin_()
    y.mul_(y.detach().cos())
    return y


def overwritten_view(y: Tensor) -> Tensor:
    half = y[:, : WIDTH // 2]
    half.sin_()
    half.cos_()
    return y.sin()


def cloned_after(y: Tensor) -> Tensor:
    y[:, 0] = 0
    return y.clone().sin()


def saved_output(y: Tensor) -> Tensor:
    y[:, : WIDTH // 2].tanh_()
    return y.sin()


def read_by_a_view(y: Tensor) -> Tensor:
    half = y[:, : WIDTH // 2]
    y.mul_(2)
    return torch.cat([half.sin_(), y[:, WIDTH // 2 :].cos()], 1)


BLOCKS = [overwritten_after, overwritten_by_two, overwritten_view, cloned_after, saved_output, read_by_a_view]


class Block(nn.Module):
    def __init__(self, writes: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        return self.writes(self.b(torch.tanh(self.a(x))))


class Case(Training):
    def __init__(self, writes: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        self.name = writes.__name__
        self.model = nn.Sequential(*(Block(writes) for _ in range(4)))
        self.args, self.kwargs = (torch.randn(ROWS, WIDTH),), {}
        self.weights = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.kernels = set()
        self.watched = False


@pytest.mark.parametrize("writes", BLOCKS, ids=lambda block: block.__name__)
def test_peaks_and_values(writes: Callable[[Tensor], Tensor]) -> None:
    case = Case(writes)
    trace = rematic.Trace.from_bytes(capture(case.model, *case.args, loss=loss_of, optimizer=sgd, device="cpu"))
    check_peak(case.name, trace.peak(), case.peak())
    expected = case.train()
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1)
    least = infeasible.value.least_budget
    for budget in (least, (least + trace.peak()) // 2):
        plan = rematic.plan(trace, budget)
        rematic.apply(case.model, plan)
        try:
            check_peak(case.name, plan.peak, case.peak())
            found = case.train()
        finally:
            rematic.remove(case.model)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_whose_nodes_they_are() -> None:
    """The backward of a write belongs to the write, that of what comes next to that."""

    def differentiated(writes: Callable[[Tensor], Tensor]) -> dict[str, list[str]]:
        document = json.loads(capture(Block(writes), torch.zeros(8, WIDTH)))
        names = [document["names"][op["name"]] for op in document["ops"]]
        found: dict[str, list[str]] = {}
        for op, name in zip(document["ops"], names, strict=True):
            if "differentiates" in op:
                found.setdefault(names[op["differentiates"]], []).append(name)
        return found

    after = differentiated(overwritten_after)
    assert {"cos.default", "mul.Tensor"} <= set(after["sin_.default"]) and "clone.default" not in after
    assert "fill_.Scalar" in after and "cos.default" not in after["fill_.Scalar"]
    cloned = differentiated(cloned_after)
    assert "cos.default" in cloned["sin.default"] and cloned["fill_.Scalar"] == after["fill_.Scalar"]
