"""What is predicted of a step, with and without plans, is what happens when it is trained for real on the CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import rematic
from models import MODELS
from reality import Ran, Training, check_peak, loss_of, sgd
from rematic._capture.step import document as capture

SHARES = {"90 %": 0.9, "75 %": 0.75, "60 %": 0.6, "the least": 0.0}
# Which tokens go to which expert depends on real weights; a capture assumes an even spread.
NAMES = [name for name in MODELS if not name.startswith("mixtral")]


class Case(Training):
    """A model with its step, captured as the CPU runs it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        document = capture(self.model, *self.args, loss=loss_of, optimizer=sgd, device="cpu", **self.kwargs)
        self.trace = rematic.Trace.from_bytes(document)
        self.kernels = {op.name.split(".")[0] for op in self.trace.ops}
        with pytest.raises(rematic.Infeasible) as infeasible:
            rematic.plan(self.trace, 1)
        self.least = infeasible.value.least_budget

    def plan(self, share: float) -> rematic.Plan:
        """The plan for a share of the peak, or for the least budget if that is more."""
        return rematic.plan(self.trace, max(self.least, int(share * self.trace.peak())))


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.callspec.params["case"]


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
    # Whole modules make what nothing reads too, and do not get as low.
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(case.trace, 1, whole=True)
    plan = rematic.plan(case.trace, infeasible.value.least_budget, whole=True)
    rematic.apply(case.model, plan)
    assert flops() - plain == rematic.replay(case.trace, plan).recompute_flops > 0


