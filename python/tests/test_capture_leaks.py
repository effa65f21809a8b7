"""A capture holds nothing of the user's when it is over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rematic import CaptureError
from rematic._capture.step import document as capture
from rematic._capture.step import document_of_step as capture_step


class Keeping(nn.Linear):
    """Holds its last output, and with it the graph of the step."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x).tanh()
        return self.last


class Failing(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise RuntimeError("it fails")


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("it fails")


class FailingBackward(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        return _FailsBackward.apply(super().forward(x)).sin()


def refs_to(model: nn.Module, *tensors: Tensor) -> list[weakref.ref[Any]]:
    return [weakref.ref(item) for item in (model, *model.parameters(), *tensors)]


def left(refs: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in refs)


@pytest.mark.parametrize("make", [nn.Linear, Keeping])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_capture_lets_go_of_weights_and_batch(make: Callable[..., nn.Module], requires_grad: bool) -> None:
    model, batch = make(8, 8), torch.zeros(2, 8, requires_grad=requires_grad)
    refs = refs_to(model, batch)
    capture(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    del model, batch
    assert left(refs) == 0


@pytest.mark.parametrize("make", [Failing, FailingBackward])
def test_a_capture_that_fails_lets_go_too(make: Callable[..., nn.Module]) -> None:
    model, batch = make(8, 8), torch.zeros(2, 8)
    refs = refs_to(model, batch)
    with pytest.raises(CaptureError, match="it fails"):
        capture(model, batch)
    del model, batch
    assert left(refs) == 0


def test_a_loss_that_the_step_keeps_is_let_go_of() -> None:
    model, losses = nn.Linear(8, 8), []
    refs = refs_to(model)

    def step(model: nn.Module, optimizer: Any) -> None:
        loss = model(torch.zeros(2, 8)).tanh().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)

    capture_step(step, model)
    del model
    assert losses == [] and left(refs) == 0
