"""Optimizers of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import rematic
from rematic._capture.optimizers import NUMBERS
from stepping import check_step

X = torch.randn(16, 64)


class Lion(optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["step"] = torch.zeros_like(parameter), torch.zeros(())
                state["step"] += 1
                update = state["mean"] * 0.9 + parameter.grad * 0.1
                if state["step"].item() > 0:
                    parameter.add_(update.sign(), alpha=-group["lr"])
                state["mean"].lerp_(parameter.grad, 0.01)


def hugging_face(parameters: Any) -> Any:
    from transformers import Adafactor

    return Adafactor(parameters)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adafactor": optim.Adafactor,
    "adafactor foreach": lambda parameters: optim.Adafactor(parameters, foreach=True),
    "hugging face's adafactor": hugging_face,
    "asgd": optim.ASGD,
    "rprop": optim.Rprop,
    "nadam": optim.NAdam,
    "radam foreach": lambda parameters: optim.RAdam(parameters, foreach=True),
    "adamax": optim.Adamax,
    "adadelta": optim.Adadelta,
    "fused adam": lambda parameters: optim.Adam(parameters, fused=True),
    "adam with a tensor for lr": lambda parameters: optim.Adam(parameters, lr=torch.tensor(1e-3)),
    "one of the user's": Lion,
}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))


def step(model: nn.Module, optimizer: Any) -> None:
    model(X).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_what_they_take_on_the_cpu(name: str) -> None:
    model = build()
    check_step(step, model, OPTIMIZERS[name](list(model.parameters())), X)
    assert rematic.capture_step(step, model, OPTIMIZERS[name](list(model.parameters()))).peak() > 0


def test_numbers_that_an_optimizer_reads_are_assumed() -> None:
    model = build()
    document = rematic.capture(model, X, optimizer=optim.Adafactor)
    assert NUMBERS in str(document.to_bytes())
    assert NUMBERS not in str(rematic.capture(model, X, optimizer=optim.NAdam).to_bytes())


def test_capturable_optimizers_are_for_cuda() -> None:
    model = build()
    optimizer = optim.Adam(model.parameters(), capturable=True)
    assert len(rematic.capture_step(step, model, optimizer)) > 0
    with pytest.raises(rematic.CaptureError, match="capturable=True"):
        rematic.capture_step(step, model, optimizer, device="cpu")


def test_muon() -> None:
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Tanh(), nn.Linear(128, 64, bias=False))
    check_step(step, model, optim.Muon(model.parameters()), X)


@pytest.mark.parametrize(
    ("make", "words"),
    [(optim.SparseAdam, "does not support dense gradients"), (optim.LBFGS, "as often as its search asks for")],
)
def test_optimizers_without_one_step_are_refused(make: Any, words: str) -> None:
    model = build()
    with pytest.raises(rematic.CaptureError, match=words):
        rematic.capture(model, X, optimizer=lambda parameters: make(list(parameters)))
