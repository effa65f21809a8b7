"""Attention captured for CUDA is what PyTorch runs there: calls whose operators were written down on a CUDA build
(`tests/attention/choices keep`)."""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention import Case, kernel_of, outcome
from rematic import CaptureError, capture
from rematic._capture.routing import as_on

WRITTEN = json.loads(gzip.decompress((pathlib.Path(__file__).parent / "attention.json.gz").read_bytes()))


IS_OTHER_TORCH = torch.__version__.split("+")[0] != WRITTEN["torch"]


@pytest.mark.skipif(IS_OTHER_TORCH, reason=f"written with PyTorch {WRITTEN['torch']}")
def test_operators_layouts_and_what_is_saved_are_those_of_cuda() -> None:
    kernels: collections.Counter[str] = collections.Counter()
    with as_on("cuda"):
        for fields, expected in WRITTEN["calls"]:
            assert outcome(Case.of(fields), "meta") == expected, fields
            kernels[kernel_of(expected)] += 1
    # The calls reach every kernel.
    assert min(kernels[kernel] for kernel in ("flash", "efficient", "math", "refused")) >= 10, kernels


def chosen(**fields: Any) -> str:
    with as_on("cuda"):
        return kernel_of(outcome(Case(**fields), "meta"))


@pytest.mark.parametrize(
    ("fields", "kernel"),
    [
        ({"key_heads": 2, "value_heads": 2, "grouped": True}, "efficient"),
        ({"key_heads": 1, "value_heads": 1}, "efficient"),
        # Fewer heads, and nobody says that they are shared.
        ({"key_heads": 2, "value_heads": 2}, "refused"),
        ({"key_heads": 2, "value_heads": 2, "grouped": True, "dtype": "bf16"}, "flash"),
        ({"key_heads": 2, "value_heads": 2, "grouped": True, "dtype": "bf16", "mask": "boolean"}, "efficient"),
        ({"width": 6, "value_width": 6}, "math"),
        ({"width": 6, "value_width": 6, "dtype": "fp16"}, "flash"),
        ({"width": 512, "value_width": 512, "dtype": "fp16"}, "efficient"),
        # Rows that do not begin at a multiple of 16 bytes.
        ({"layout": "shifted"}, "math"),
        ({"allowed": ("math",)}, "math"),
        ({"allowed": ("flash",)}, "refused"),
        ({"dtype": "bf16", "allowed": ("efficient", "flash"), "ordered": True}, "efficient"),
    ],
)
def test_the_rule(fields: dict[str, Any], kernel: str) -> None:
    assert chosen(**fields) == kernel


def test_before_2_14_less_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rematic._capture.attention.HAS_RULES_OF_2_14", False)
    grouped = {"key_heads": 2, "value_heads": 2, "grouped": True}
    assert chosen(**grouped) == "math"
    assert chosen(**grouped, dtype="bf16") == "flash"
    assert chosen(key_heads=1, value_heads=1, dtype="bf16") == "math"
    assert chosen(rank=3) == "math"


def test_cudnn_alone_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.weight
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return nn.functional.scaled_dot_product_attention(x, x, x)

    with pytest.raises(CaptureError, match="cuDNN's kernel alone") as caught:
        capture(Attention(), torch.ones(2, 4, 16, 64), device="cuda")
    assert "SDPBackend.FLASH_ATTENTION" in str(caught.value)
