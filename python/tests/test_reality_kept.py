"""What modules keep of their forward, from step to step: real peaks of plain and planned steps, beside the promised ones."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

import rematic
from reality import TOLERANCE, Ran, peaks, sgd

WIDTH, ROWS, LAYERS = 64, 256, 4
# Where two gradients of one tensor meet, as in a capture (see `reality.WATCHED`).
WATCHED = ("loss", "unused")


class Keeping(nn.Module):
    """Keeps what its name says, as models keep attention maps, states and auxiliary losses."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.what = what
        self.kept: object = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(torch.tanh(self.wide(x)) * 2)
        if self.what == "loss":
            self.kept = h.mean()
        elif self.what == "tensor":
            self.kept = h
        elif self.what == "detached":
            self.kept = h.detach()
        elif self.what == "cleared":
            self.kept = None
            self.kept = {"map": [h.detach()]}
        elif self.what == "unused":
            # Its graph is never gone through: it keeps `h` until it is replaced.
            self.kept = (h * h).mean()
        return x + self.narrow(h)


class Model(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        # A layer whose graph outlives the step is not checkpointed: the others are.
        others = "nothing" if what == "unused" else what
        self.layers = nn.ModuleList(Keeping(what if not layer else others) for layer in range(LAYERS))
        self.head = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.Tanh(), nn.Linear(8 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        extra = sum(layer.kept for layer in self.layers) if self.layers[0].what == "loss" else 0
        return self.head(x).square().mean() + extra


def real_peak(model: Model, x: Tensor) -> int:
    for layer in model.layers:
        layer.kept = None
    optimizer = sgd(model.parameters())
    output: list[Tensor] = []

    def step() -> None:
        output[:] = [model(x)]
        output[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    with Ran() if model.layers[0].what in WATCHED else contextlib.nullcontext():
        return peaks(step, model, x, set())[0]


@pytest.mark.parametrize("what", ["nothing", "loss", "tensor", "detached", "cleared", "unused"])
def test_what_modules_keep_is_counted_until_it_is_replaced(what: str) -> None:
    torch.manual_seed(0)
    model, x = Model(what), torch.randn(ROWS, WIDTH)
    trace = rematic.capture(model, x, device="cpu", optimizer=sgd)
    peak = trace.peak()
    assert abs(real_peak(model, x) - peak) <= TOLERANCE * peak
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1)
    for budget in (int(0.75 * peak), 0):
        plan = rematic.plan(trace, max(infeasible.value.least_budget, budget))
        assert plan.regions
        rematic.apply(model, plan, audit=0)
        try:
            real = real_peak(model, x)
        finally:
            rematic.remove(model)
        assert abs(real - plan.peak) <= TOLERANCE * plan.peak, (budget, real, plan.peak)
