"""What is noticed while the first steps run under a plan: other numbers than before, and a promise that does not hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import X, whole
from test_apply_state import Inner, Outer, State, counted, nothing

# ---- the audit ----

OUTSIDE = torch.ones(3)


def unseen(inner: Inner, state: Any) -> Any:
    """Reads memory that is written outside of PyTorch."""
    view = OUTSIDE.numpy()
    view += 1
    return torch.full((), float(view[0]))


@pytest.mark.parametrize("audit", [3, 0])
def test_other_numbers_are_noticed(audit: int) -> None:
    model = Outer(unseen, State, nothing)
    rematic.apply(model, whole(model, X, only="inner"), audit=audit)
    loss = model(X).square().mean()
    if not audit:
        loss.backward()
        return
    words = r"`Outer.inner` \(call 0\) made other numbers when it ran again: operator \d+ \(`full.default`\) is the first"
    with pytest.raises(rematic.AuditError, match=words) as raised:
        loss.backward()
    error = copy.copy(raised.value)
    assert (error.module, error.call, error.op) == ("Outer.inner", 0, "full.default")


def test_the_audit_ends_after_its_steps() -> None:
    audited = []
    model = Outer(lambda inner, state: 2.0, State, nothing)
    rematic.apply(model, whole(model, X, only="inner"), audit=2)
    root = model.__dict__["forward"].root
    for _ in range(3):
        audited.append(root.audits)
        model(X).sum().backward()
    assert audited == [2, 1, 0]


@pytest.mark.parametrize("audit", [-1, True, "3", 1.5])
def test_what_is_no_number_of_steps(audit: Any) -> None:
    with pytest.raises(rematic.PlanError, match="`audit` is how many steps are compared"):
        rematic.apply(Outer(counted, State, nothing), None, audit=audit)  # type: ignore[arg-type]


# ---- the promise ----

LEAKED: list[Tensor] = []


class Leaking(nn.Module):
    """Puts what it computes into a list, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.leaks = False

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(torch.tanh(self.wide(x)) * 2)
        if self.leaks:
            LEAKED.append(h)
        return x + self.narrow(h)


@pytest.mark.parametrize("leaks", [True, False])
def test_a_promise_that_does_not_hold_is_noticed(leaks: bool, recwarn: pytest.WarningsRecorder) -> None:
    LEAKED.clear()
    model, x = nn.Sequential(*(Leaking() for _ in range(4))), torch.randn(256, 64)
    trace = rematic.capture(model, x, device="cpu", loss=lambda output: output.square().mean())
    rematic.apply(model, rematic.plan(trace, int(0.75 * trace.peak())))
    for layer in model:
        layer.leaks = leaks
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = [warning for warning in recwarn if issubclass(warning.category, rematic.RematicWarning)]
    assert len(found) == leaks
    if leaks:
        assert "After its forward the step has 1.81 MiB in memory, 70.6 % above the 1.06 MiB that the plan promises" in str(found[0].message)
        assert found[0].filename == __file__
