"""What is predicted of a step, with and without plans, is what happens when it is trained for real on the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import models
import rematic
from models import MODELS
from reality import Ran, peaks
from rematic._capture.step import document as capture

TOLERANCE = 0.001
SHARES = {"90 %": 0.9, "75 %": 0.75, "60 %": 0.6, "the least": 0.0}
# Large enough that activations, not parameters, make the peak.
BATCH = 8
# Their kernels take memory while they run that no tensor of the step holds: oneDNN's copies in its own layouts, and the
# buffers of attention's backward. It is left out of what is compared.
WITH_SCRATCH = ("vit", "resnet50", "unet")
# Where the gradients of two branches meet, PyTorch adds the second to the first in place, unless a dispatch mode is
# active, as in a capture and under MemTracker. Only here does that make the peak (by 0.23 %): one is active in both.
WATCHED = ("resnet50",)
# Which tokens go to which expert hangs on real weights; a capture assumes an even spread.
NAMES = [name for name in MODELS if not name.startswith("mixtral")]


def loss_of(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output.float().square().mean()
    return output.loss


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class Case:
    """A model with its step, captured as the CPU runs it."""

    def __init__(self, name: str) -> None:
        self.name = name
        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(models, "BATCH", BATCH)
            self.model, self.args, self.kwargs = MODELS[name]("cpu")
        if name == "vit":
            self.kwargs["labels"] = torch.arange(BATCH)
        for tensor in [*self.args, *self.kwargs.values()]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.normal_()
        self.weights = {key: value.clone() for key, value in self.model.state_dict().items()}
        document = capture(self.model, *self.args, loss=loss_of, optimizer=sgd, device="cpu", **self.kwargs)
        self.trace = rematic.Trace.from_bytes(document)
        self.kernels = {op.name.split(".")[0] for op in self.trace.ops}
        with pytest.raises(rematic.Infeasible) as infeasible:
            rematic.plan(self.trace, 1)
        self.least = infeasible.value.least_budget

    def plan(self, share: float) -> rematic.Plan:
        """The plan for a share of the peak, or for the least budget if that is more."""
        return rematic.plan(self.trace, max(self.least, int(share * self.trace.peak())))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        # As in a loop, the output of the last step lives until this one's takes its place.
        self.output = self.model(*self.args, **self.kwargs)
        loss_of(self.output).backward()
        optimizer.step()
        optimizer.zero_grad()

    def peak(self) -> tuple[int, int]:
        """The real peak, and the one without the scratch of kernels."""
        self.output = None
        watch = Ran() if self.name in WATCHED else contextlib.nullcontext()
        step = functools.partial(self.step, sgd(self.model.parameters()))
        with watch:
            return peaks(step, self.model, (self.args, self.kwargs), self.kernels)

    def train(self) -> list[Tensor]:
        """Losses and gradients of three steps, and the weights and buffers after them."""
        self.model.load_state_dict(self.weights)
        torch.manual_seed(7)
        optimizer = sgd(self.model.parameters())
        values: list[Tensor] = []
        for _ in range(3):
            loss = loss_of(self.model(*self.args, **self.kwargs))
            loss.backward()
            values.append(loss.detach())
            values += [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
        # Nothing that follows may draw other numbers either.
        return [*values, *(value.clone() for value in self.model.state_dict().values()), torch.rand(3)]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.callspec.params["case"]


def check_peak(name: str, predicted: int, real: tuple[int, int]) -> None:
    highest, settled = real
    compared = settled if name in WITH_SCRATCH else highest
    assert abs(compared - predicted) <= TOLERANCE * predicted, (predicted, highest, settled)
    assert settled <= highest


def test_the_peak_of_the_plain_step(case: Case, name: str) -> None:
    check_peak(name, case.trace.peak(), case.peak())


def test_peaks_and_values_under_plans(case: Case, name: str) -> None:
    expected = case.train()
    reached = set()
    for share in SHARES.values():
        plan = case.plan(share)
        if plan.peak in reached:
            continue
        reached.add(plan.peak)
        assert plan.outcome == "planned" and plan.peak < case.trace.peak()
        rematic.apply(case.model, plan)
        try:
            check_peak(name, plan.peak, case.peak())
            found = case.train()
        finally:
            rematic.remove(case.model)
        assert len(found) == len(expected)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), share


def test_what_is_recomputed_is_what_the_plan_says(case: Case) -> None:
    def ran() -> Counter[str]:
        with Ran() as ops:
            case.step(sgd(case.model.parameters()))
        return Counter(name for name in ops.names if name != "detach.default")

    plain = ran()
    for share in SHARES.values():
        plan = case.plan(share)
        replay = rematic.replay(case.trace, plan)
        rematic.apply(case.model, plan)
        try:
            planned = ran()
        finally:
            rematic.remove(case.model)
        assert plain - planned == Counter()
        assert planned - plain == Counter(name for name in replay.recomputed if name != "detach.default")
        assert sum((planned - plain).values()) > 0


@pytest.mark.parametrize("name", ["seed-transformer", "llama", "bert"])
def test_recompute_flops_agree(name: str) -> None:
    case = Case(name)

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            case.step(sgd(case.model.parameters()))
        return counter.get_total_flops()

    plain = flops()
    plan = rematic.plan(case.trace, case.least, whole=True)
    rematic.apply(case.model, plan)
    assert flops() - plain == rematic.replay(case.trace, plan).recompute_flops > 0


