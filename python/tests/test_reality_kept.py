"""What modules keep of their forward, from step to step: real peaks of plain and planned steps, beside the promised ones."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import whole
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
        if self.what == "input":
            self.kept = x.detach()
        elif self.what == "loss":
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


@pytest.mark.filterwarnings("error::rematic.RematicWarning")
@pytest.mark.parametrize("what", ["nothing", "input", "loss", "tensor", "detached", "cleared", "unused"])
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


class Codes(nn.Module):
    """An encoder whose output is only compared: no gradient goes through it, and its graph is thrown away in forward."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH), nn.Sigmoid())
        self.table = nn.Embedding(WIDTH, WIDTH)
        self.decoder = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
        self.late = late

    def forward(self, x: Tensor) -> Any:
        encoded = self.encoder(x)
        decoded = self.decoder(self.table(encoded.argmax(1)))
        # Its graph goes inside of the region, or with the caller's variable.
        return (decoded, encoded) if self.late else decoded


class Coding(nn.Module):
    def __init__(self, late: bool) -> None:
        super().__init__()
        self.codes = Codes(late)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        found = self.codes(x)
        return self.head(found[0] if isinstance(found, tuple) else found).square().mean()


@pytest.mark.parametrize("late", [False, True])
def test_a_graph_that_is_thrown_away_is_there_again_while_its_region_runs_again(late: bool) -> None:
    torch.manual_seed(0)
    model, x = Coding(late), torch.randn(ROWS, WIDTH)
    trace = rematic.capture(model, x, device="cpu", optimizer=sgd)
    plan = whole(model, x, only="codes", optimizer=sgd)
    promised = rematic.replay(trace, plan).peak
    optimizer = sgd(model.parameters())

    def step() -> None:
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()

    rematic.apply(model, plan, audit=0)
    with Ran():
        real = peaks(step, model, x, set())[0]
    assert abs(real - promised) <= TOLERANCE * promised, (real, promised)
