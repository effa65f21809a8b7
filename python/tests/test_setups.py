"""Native set-ups are what capture sees of the same set-ups in PyTorch: operator by operator, byte by byte."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import pytest
import torch

import rematic
from adapters import with_adapters
from canonical import difference, timeline
from models import DECODER, causal
from rematic._capture.step import document_of_step as capture
from rematic._loss.function import CHUNKS
from rematic._loss.head import Chunked
from setups import (
    FAMILIES,
    SIZES,
    Lion,
    Muon,
    built,
    comparable,
    config_file,
    frozen,
    step,
    with_lora,
)
from test_capture_parity import Stats, unpacked  # noqa: F401

ADAMW = functools.partial(torch.optim.AdamW, fused=True)
HALF, SINGLE = torch.bfloat16, torch.float32
BF16 = ["--dtype", "bf16"]
MIXED = ["--precision", "mixed"]
FP32 = ["--dtype", "fp32"]
FP16 = ["--precision", "fp16"]
FOREACH = functools.partial(torch.optim.AdamW, foreach=True)
SGD = functools.partial(torch.optim.SGD, momentum=0.9, fused=True)


class Setup:
    """How PyTorch does it, and how the command says it."""

    def __init__(self, options: list[str], prepared: Any = None, dtype: Any = SINGLE, optimizer: Any = ADAMW, **loop: Any) -> None:
        # Whether the loss is computed in chunks, as a plan for it is applied.
        self.chunked = loop.pop("chunked", False)
        self.options = options
        self.prepared = prepared
        self.dtype = dtype
        self.optimizer = optimizer
        self.loop = loop


SETUPS = {
    "mixed": Setup(MIXED, autocast=HALF),
    "fp16": Setup(FP16, autocast=torch.float16),
    "fp16, foreach, accumulate": Setup(
        [*FP16, "--optimizer", "adamw", "--accumulate", "2"], optimizer=FOREACH, autocast=torch.float16, micro_batches=2
    ),
    "fp16, fused SGD, chunked": Setup(
        [*FP16, "--optimizer", "sgd-momentum-fused", "--loss", "chunked"], optimizer=SGD, chunked=True, autocast=torch.float16
    ),
    "fp16, lion": Setup([*FP16, "--optimizer", "lion"], optimizer=Lion, autocast=torch.float16),
    "accumulate": Setup([*BF16, "--accumulate", "3"], dtype=HALF, micro_batches=3),
    "frozen": Setup([*FP32, "--freeze", "*.0.*"], lambda model: frozen(model, "*.0.*")),
    "chunked": Setup([*BF16, "--loss", "chunked"], dtype=HALF, chunked=True),
    "chunked, mixed, accumulate": Setup(
        [*MIXED, "--loss", "chunked", "--accumulate", "2"], chunked=True, autocast=HALF, micro_batches=2
    ),
    "lion": Setup([*FP32, "--optimizer", "lion"], optimizer=Lion),
    "muon": Setup([*FP32, "--optimizer", "muon"], optimizer=Muon),
    "adafactor, mixed": Setup([*MIXED, "--optimizer", "adafactor"], optimizer=torch.optim.Adafactor, autocast=HALF),
}
ADAPTERS: dict[str, tuple[int, Any, Setup]] = {
    "lora": (8, None, Setup([*BF16, "--lora", "8"], dtype=HALF)),
    "lora everywhere, mixed, accumulate": (
        5, "all-linear",
        Setup([*MIXED, "--lora", "5", "--lora-targets", "all-linear", "--accumulate", "2"], autocast=HALF, micro_batches=2),
    ),
}  # fmt: skip


def check(family: str, setup: Setup, native: Stats, place: pathlib.Path) -> None:
    model, inputs = built(family, setup.dtype)
    model = model if setup.prepared is None else setup.prepared(model)
    chunked = Chunked("lm_head", CHUNKS) if setup.chunked else None
    captured = comparable(json.loads(capture(step(inputs, **setup.loop), model, setup.optimizer, chunked=chunked)))
    expected = comparable(native(config_file(place, family), *SIZES, *setup.options))
    assert difference(captured, expected) is None
    assert timeline(captured) == timeline(expected)


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_setups_equal_native(family: str, name: str, native: Stats, tmp_path: pathlib.Path, unpacked: None) -> None:  # noqa: F811
    check(family, SETUPS[name], native, tmp_path)


# Models that change their logits before the loss.
SCALED: dict[str, dict[str, Any]] = {
    "gemma2": DECODER | {"head_dim": 16, "tie_word_embeddings": True},
    "granite": DECODER | {"logits_scaling": 8.0},
    "cohere": DECODER | {"logit_scale": 0.0625, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


@pytest.mark.parametrize("options", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("kind", SCALED)
def test_scaled_logits_in_chunks_equal_native(
    kind: str, options: list[str], native: Stats, tmp_path: pathlib.Path, unpacked: None  # noqa: F811
) -> None:
    dtype = HALF if options is BF16 else SINGLE
    model, _, inputs = causal(kind, dtype, **SCALED[kind], use_cache=False)("meta")
    captured = comparable(json.loads(capture(step(inputs), model, ADAMW, chunked=Chunked("lm_head", CHUNKS))))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SCALED[kind]}))
    expected = comparable(native(str(path), *SIZES, *options, "--loss", "chunked"))
    assert difference(captured, expected) is None
    assert timeline(captured) == timeline(expected)


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("library", ["by hand", "peft"])
def test_adapters_equal_native(
    library: str, family: str, name: str, native: Stats, tmp_path: pathlib.Path, unpacked: None  # noqa: F811
) -> None:
    rank, targets, setup = ADAPTERS[name]
    if library == "peft":
        pytest.importorskip("peft")
    setup.prepared = lambda model: (with_lora if library == "peft" else with_adapters)(model, rank, targets)
    check(family, setup, native, tmp_path)


def test_chunked_loss_is_the_loss() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, 37, 24, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(51, 24, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 51, (2, 37))
    labels[0, 5] = -100
    from transformers.loss.loss_utils import ForCausalLMLoss

    expected = ForCausalLMLoss(hidden @ weight.t(), labels, 51)
    wanted = torch.autograd.grad(expected, (hidden, weight))
    for chunks in (1, 3, 8, 1000):
        loss = rematic.chunked_loss(hidden, weight, labels, chunks=chunks)
        torch.testing.assert_close(loss, expected)
        for found, want in zip(torch.autograd.grad(loss * 3, (hidden, weight)), wanted, strict=True):
            torch.testing.assert_close(found, 3 * want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="chunks is 0"):
        rematic.chunked_loss(hidden, weight, labels, chunks=0)


def test_python_takes_what_the_command_takes(native: Stats, tmp_path: pathlib.Path) -> None:
    config = config_file(tmp_path, "llama")
    said = {"lora": 4, "lora_targets": ["q_proj", "up_proj"], "lora_alpha": 8, "precision": "mixed", "accumulate": 2}
    trace = rematic.Trace.model(config, batch=2, seq=64, freeze="*.lm_head.*", loss="chunked", **said)  # type: ignore[arg-type]
    options = ["--lora", "4", "--lora-targets", "q_proj,up_proj", "--lora-alpha", "8", *MIXED, "--accumulate", "2"]
    expected = native(config, *SIZES, *options, "--freeze", "*.lm_head.*", "--loss", "chunked")
    assert json.loads(trace.to_bytes()) == expected


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"precision": "int8"}, "precision is `int8`; give bf16, mixed, fp32 or fp16"),
        ({"precision": "mixed", "dtype": "bf16"}, "dtype and precision say the same thing"),
        ({"lora_targets": "q_proj"}, "lora_targets and lora_alpha are for lora; give its rank"),
        ({"lora": 8, "lora_targets": "query"}, "no linear layer is called so"),
        ({"lora": 0}, "the rank must be from 1"),
        ({"accumulate": 0}, "accumulate is 0; it must be from 1 to 1024"),
        ({"freeze": "encoder.*"}, "no parameter is called so"),
        ({"loss": "fused"}, "loss is `fused`; give plain, chunked or auto"),
    ],
)
def test_mistakes_are_explained(said: dict[str, Any], words: str) -> None:
    with pytest.raises(rematic.RematicError) as raised:
        rematic.Trace.model("gpt2", layers=1, seq=16, **said)
    assert words in str(raised.value)
