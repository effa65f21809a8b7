"""Operators do not run again if nothing reads what they make; `test_apply_recourse.py` is about who reads it all the same."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import Layers, X, check_equal, deciding, results, whole
from reality import Ran
from rematic._apply.hollow import Hollow, Outline

WIDTH = X.shape[-1]


class Norm(nn.Module):
    """Of what is squared and averaged, backward needs the result alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return torch.sin(self.weight * (x * scale)).tanh()


class Summed(nn.Module):
    """Adds up in place what no backward needs, and looks at shapes and views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seen: Any = None

    def forward(self, x: Tensor) -> Tensor:
        summed = torch.zeros_like(x)
        for part in (1.0, 2.0):
            summed.add_(self.linear(x) * part)
        self.seen = summed.view(-1)[: summed.shape[0]].detach()
        return summed + self.linear(x).sin()


class Reading(nn.Module):
    """Looks at numbers of which no operator makes anything."""

    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        counted = torch.arange(x.shape[0], device=x.device) + 1
        number = self.read(counted.float() * 2)
        return torch.tanh(self.linear(torch.sin(x * number)))


READS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda counts: counts.tolist()[1],
    "cpu": lambda counts: sum(counts.cpu().tolist()),
    "numpy": lambda counts: float(counts.numpy()[0]),
    "array": lambda counts: float(counts.__array__().sum()),
    "item": lambda counts: counts[1].item(),
    "tensor": lambda counts: torch.tensor([counts[0], counts[1]]).sum(),
    "text": lambda counts: len(f"{counts[0]:.2f} {counts}") * 0.01,
    "host": lambda counts: float(torch.arange(4).mul(3).tolist()[1]),
    "branch": lambda counts: 2.0 if counts[0] > 1 else 3.0,
    "nonzero": lambda counts: counts[(counts > 3).nonzero().squeeze(1)].shape[0],
}


class Recurrent(nn.Module):
    """Sequences of several lengths, packed and padded again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made = self.linear(x).sin().expand(3, -1, -1)
        lengths = torch.full((3,), x.shape[0]) - torch.arange(3)
        packed = nn.utils.rnn.pack_padded_sequence(made, lengths, batch_first=True)
        out, _ = self.recurrent(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return torch.tanh(padded.sum(0))


class Indexed(nn.Module):
    """Reads and writes by positions, masks and lists of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)
        mask = order % 2 == 0
        y = self.linear(x)[order].sin()
        z = torch.zeros_like(y)
        z[mask] = y[mask] * 2
        z[[0, 1]] = y[[1, 0]]
        return torch.tanh(z[:, torch.tensor(list(range(WIDTH)))] + y.index_select(0, order).gather(0, order[:, None].expand_as(y)))


DECISIONS = {"pow.Tensor_Scalar": "skip", "mean.dim": "skip", "add.Tensor": "skip", "rsqrt.default": "save"}


def ran(model: nn.Module) -> Counter[str]:
    with Ran() as ops:
        results(model, X)
    return Counter(name for name in ops.names if name != "detach.default")


def test_what_is_skipped_does_not_run() -> None:
    model = Layers(Norm)
    expected, plain = results(model, X), ran(model)
    plan = deciding(whole(model, X), DECISIONS)
    assert [len(region.skipped) for region in plan.regions] == [3, 3]
    rematic.apply(model, plan)
    check_equal(results(model, X, passes=1), expected)
    again = ran(model) - plain
    assert not {"pow.Tensor_Scalar", "mean.dim", "add.Tensor", "rsqrt.default"} & set(again), again
    assert again["addmm.default"] == again["sin.default"] == len(plan.regions)


def test_what_is_changed_in_place_and_viewed_may_be_skipped() -> None:
    torch.manual_seed(0)
    model = Layers(Summed)
    expected = results(model, X)
    trace = rematic.capture(model, X, device="cpu", optimizer=False, loss=lambda out: out.square().mean())
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, runs=False)
    plan = rematic.plan(trace, infeasible.value.least_budget, runs=False)
    skipped = {region.policy[at][0] for region in plan.regions for at in region.skipped}
    assert {"zeros_like.default", "mul.Tensor", "add_.Tensor", "view.default"} <= skipped, skipped
    rematic.apply(model, plan)
    check_equal(results(model, X), expected)
    seen = [layer.seen for layer in model.layers]
    assert all(type(tensor) is Tensor for tensor in seen)


def check_plans(make: Callable[[], nn.Module], x: Tensor) -> int:
    """Trains under plans for several budgets, and says how many operators they skip."""
    torch.manual_seed(0)
    model = Layers(make)
    expected = results(model, x)
    trace = rematic.capture(model, x, device="cpu", optimizer=False, loss=lambda out: out.square().mean())
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, runs=False)
    least, skipped = infeasible.value.least_budget, 0
    for part in (0.0, 0.3, 0.7):
        plan = rematic.plan(trace, int(least + part * (trace.peak() - least)), runs=False)
        skipped += sum(len(region.skipped) for region in plan.regions)
        planned = Layers(make)
        planned.load_state_dict(model.state_dict())
        rematic.apply(planned, plan)
        check_equal(results(planned, x), expected)
    return skipped


@pytest.mark.parametrize("read", READS)
def test_what_python_reads_is_made_again(read: str) -> None:
    check_plans(lambda: Reading(READS[read]), torch.randn(64, WIDTH))


@pytest.mark.parametrize("kind", [Recurrent, Indexed, Norm])
def test_plans_that_skip_change_nothing(kind: type[nn.Module]) -> None:
    assert check_plans(kind, torch.randn(64, WIDTH)) > 0


@pytest.mark.parametrize("read", ["tolist", "numpy", "item", "data_ptr", "exp", "clone", "__bool__"])
def test_nothing_reads_what_is_hollow(read: str) -> None:
    hollow = Hollow(Outline(torch.ones(1)))
    assert (hollow.shape, hollow.dtype, hollow.device) == ((1,), torch.float32, torch.device("cpu"))
    with pytest.raises((RuntimeError, rematic.PlanError)):
        getattr(hollow, read)()


def test_the_emitted_plan_skips_too(tmp_path: Path) -> None:
    model = Layers(Norm)
    expected, plain = results(model, X), ran(model)
    file = tmp_path / "plan.py"
    file.write_text(deciding(whole(model, X), DECISIONS).to_python())
    spec = importlib.util.spec_from_file_location("plan", file)
    assert spec is not None and spec.loader is not None
    emitted: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    emitted.apply_plan(model)
    check_equal(results(model, X), expected)
    assert not {"pow.Tensor_Scalar", "mean.dim", "rsqrt.default"} & set(ran(model) - plain)


def test_older_plans_run_all_again() -> None:
    model = Layers(Norm)
    plan = whole(model, X)
    assert json.loads(plan.to_json())["version"] < 6 and not any(region.skipped for region in plan.regions)
    plain = ran(model)
    rematic.apply(model, plan)
    assert {"pow.Tensor_Scalar", "mean.dim"} <= set(ran(model) - plain)
