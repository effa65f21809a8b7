"""Losses: connectionist temporal classification, and those that keep the memory of their elements."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models import Layer
from rematic._capture.step import document as capture
from stepping import check_model

STEPS, BATCH, WIDTH, LABELS = 16, 4, 32, 20
X = torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
LENGTHS = [6, 2, 3, 1]
PADDED = torch.randint(1, LABELS, (BATCH, max(LENGTHS)))
JOINED = torch.randint(1, LABELS, (sum(LENGTHS),))
FRAMES = [STEPS, STEPS, 12, 9]


class Recognizer(nn.Module):
    def __init__(self, frames: Any = None, lengths: Any = None, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, LABELS)
        self.given = (frames, lengths)
        self.options = options

    def forward(self, x: Tensor, targets: Tensor, *given: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x).log_softmax(-1)
        return functional.ctc_loss(scores, targets, *(given or self.given), **self.options).sum()


@pytest.mark.parametrize("targets", [PADDED, JOINED])
@pytest.mark.parametrize("as_tensors", [True, False])
def test_ctc_runs_as_on_the_cpu(targets: Tensor, as_tensors: bool) -> None:
    if as_tensors:
        check_model(Recognizer, X, targets, torch.tensor(FRAMES), torch.tensor(LENGTHS))
    else:
        check_model(lambda: Recognizer(FRAMES, LENGTHS, zero_infinity=True), X, targets)


def test_ctc_with_lengths_that_the_model_makes() -> None:
    class Made(Recognizer):
        def forward(self, x: Tensor, targets: Tensor, *given: Tensor) -> Tensor:
            return super().forward(x, targets, torch.full((BATCH,), STEPS), torch.full((BATCH,), 2))

    check_model(lambda: Made(reduction="none"), X, PADDED)


def ctc_operators(*args: Any) -> list[str]:
    document = json.loads(capture(Recognizer(), *args))
    names = [document["names"][op["name"]] for op in document["ops"]]
    return [name for name in dict.fromkeys(names) if "ctc" in name and "use" not in name]


def test_the_kernel_of_cuda_is_chosen_by_its_rules() -> None:
    frames, lengths = torch.tensor(FRAMES), torch.tensor(LENGTHS)
    native = ["_ctc_loss.Tensor", "_ctc_loss_backward.Tensor"]
    assert ctc_operators(X, PADDED, frames, lengths) == native
    assert ctc_operators(X, JOINED, frames, lengths) == native
    assert ctc_operators(X, JOINED.int(), frames.int(), lengths.int()) == ["_cudnn_ctc_loss.Tensor"]
    too_long = torch.tensor([STEPS + 1, 2, 3, 1], dtype=torch.int32)
    assert ctc_operators(X, JOINED.int(), frames.int(), too_long) == native


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "smooth l1": lambda x, y: functional.smooth_l1_loss(x, y, reduction="sum"),
    "binary cross entropy": lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "soft margin": lambda x, y: functional.soft_margin_loss(x, y.sign()),
    "elements": lambda x, y: functional.mse_loss(x, y, reduction="none").mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_keep_the_memory_of_their_elements(name: str) -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(2))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return LOSSES[name](x, y)

    check_model(Trained, X, torch.zeros_like(X))
