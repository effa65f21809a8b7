"""Mixed precision by `torch.autocast`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memtracker
from canonical import timeline
from models import DECODER, causal, seed_transformer, unet
from rematic._capture.step import document as capture
from rematic._capture.step import loss_of as _loss_of


class Mixed(nn.Module):
    """A model that runs inside autocast, called with the device whose autocast is meant."""

    def __init__(self, model: nn.Module, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.model = model
        self.device = device
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device, dtype=self.dtype):
            return self.model(*args, **kwargs)


GPT2 = causal("gpt2", n_layer=2, n_embd=64, n_head=4, vocab_size=512)


@pytest.mark.parametrize("build", [seed_transformer, causal("llama", **DECODER), GPT2, unet])
def test_cpu_autocast_equals_a_real_cpu_run(build: Any) -> None:
    def mixed(device: str) -> Any:
        model, args, kwargs = build(device)
        return Mixed(model, "cpu"), args, kwargs

    model, args, kwargs = mixed("cpu")
    document = json.loads(capture(model, *args, device="cpu", **kwargs))
    _, real = memtracker.track(
        mixed, "cpu", lambda output: _loss_of(output, None), torch.optim.Adam, with_modules=False, real=True
    )
    assert [(op, total) for op, _, total in timeline(document, 1)] == real


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.linear(x))
        with torch.autocast(x.device.type, enabled=False):
            x = self.linear(x.float())
        return torch.softmax(self.norm(x), -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cuda_autocast(dtype: torch.dtype) -> None:
    document = json.loads(capture(Mixed(Twice(), "cuda", dtype), torch.zeros(4, 32, 64)))
    spelled = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]

    def types(name: str, kind: str) -> list[str]:
        return [
            document["layouts"][op[kind][0][1]][0]
            for op in document["ops"]
            if op["phase"] == "forward" and document["names"][op["name"]] == name
        ]

    assert types("addmm.default", "outputs") == [spelled, spelled, "f32"]
    assert types("native_layer_norm.default", "inputs") == ["f32"]
    assert types("_softmax.default", "outputs") == ["f32"]
    # The bias and the weight are cast once for both calls; then the input; then back for the block without autocast.
    assert types("_to_copy.default", "outputs") == [spelled, spelled, spelled, "f32"]
    casts = [op for op in document["ops"] if document["names"][op["name"]] == "_to_copy.default"]
    assert sum(op["phase"] == "backward" for op in casts) == 3


def test_autocast_outside_capture_is_untouched() -> None:
    capture(Mixed(Twice(), "cuda"), torch.zeros(4, 32, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.zeros(2, 2, device="meta") @ torch.zeros(2, 2, device="meta")).dtype == torch.float32
        assert (torch.zeros(2, 2) @ torch.zeros(2, 2)).dtype == torch.bfloat16
