"""Captured traces say what torch's MemTracker says, and what the native models say, to the byte."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import memtracker
from canonical import difference, timeline
from models import DECODER, MODELS, causal, seed_transformer
from rematic._capture.step import document as capture
from rematic._capture.step import loss_of as _loss_of

CATEGORIES = {
    "Parameter": "parameter", "Buffer": "buffer", "Gradient": "gradient", "Activation": "activation", "Temp": "temp",
    "Optstate": "optimizer", "Other": "other", "Total": "total",
}  # fmt: skip
Stats = Callable[..., dict[str, Any]]


def loss_of(output: Any) -> torch.Tensor:
    return _loss_of(output, None)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=True)


@functools.cache
def captured(name: str) -> bytes:
    model, args, kwargs = MODELS[name]("meta")
    return capture(model, *args, **kwargs)


@pytest.mark.parametrize("name", MODELS)
def test_peak_and_categories_equal_memtracker(name: str, stats: Stats) -> None:
    peak = stats(captured(name), "--allocator", "cuda")["peak"]
    tracked, _ = memtracker.track(MODELS[name], "cuda", loss_of, adam)
    assert {category: peak[category] for category in CATEGORIES.values()} == {
        CATEGORIES[category]: size for category, size in tracked.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_equals_memtracker(name: str) -> None:
    document = json.loads(captured(name))
    _, tracked = memtracker.track(MODELS[name], "cuda", loss_of, adam, with_modules=False)
    assert [(op, total) for op, _, total in timeline(document)] == tracked


# Which tokens go to which expert depends on real weights; the capture assumes an even spread.
ROUTED = ("mixtral",)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ROUTED])
def test_cpu_capture_equals_a_real_cpu_run(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]("cpu")
    document = json.loads(capture(model, *args, device="cpu", **kwargs))
    _, real = memtracker.track(MODELS[name], "cpu", loss_of, torch.optim.Adam, with_modules=False, real=True)
    assert [(op, total) for op, _, total in timeline(document, 1)] == real


def test_mixture_assumes_an_even_spread() -> None:
    document = json.loads(captured("mixtral"))
    assert "routing assumed balanced" in document["origin"]["assumptions"]


# ---- the native models ----

GPT2 = {"vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}


def config_file(tmp_path: pathlib.Path, kind: str, fields: dict[str, Any]) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **fields}))
    return str(path)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native models leave out Hugging Face's look for packed sequences: a few operators on the positions."""
    import transformers.masking_utils

    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices", lambda *args, **kwargs: None)


def test_seed_transformer_equals_native(native: Stats) -> None:
    model, args, kwargs = seed_transformer("meta")
    shape = ["--layers", "2", "--dim", "64", "--heads", "4", "--vocab", "512", "--batch", "2", "--seq", "64"]
    expected = native("seed-transformer", *shape)
    assert difference(json.loads(capture(model, *args, **kwargs)), expected) is None


def test_seed_test_numbers(native: Stats, stats: Stats) -> None:
    """The transformer of torch's own test, at its size."""
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    with torch.device("meta"):
        model = Transformer(
            ModelArgs(n_layers=4, n_heads=12, vocab_size=8192, max_seq_len=1024, dim=768, dropout_p=0.1)
        )
    document = capture(model, torch.zeros(8, 1024, dtype=torch.long))
    assert difference(json.loads(document), native("seed-transformer")) is None
    assert stats(document)["peak"]["total"] == 2_684_848_128


@pytest.mark.parametrize(
    ("kind", "fields", "dtype"),
    [
        ("gpt2", GPT2, "fp32"),
        ("gpt2", GPT2, "bf16"),
        ("llama", DECODER, "fp32"),
        ("llama", DECODER, "bf16"),
        ("llama", DECODER | {"num_key_value_heads": 4, "tie_word_embeddings": True}, "fp32"),
        ("mistral", DECODER | {"sliding_window": 16}, "bf16"),
        ("mistral", DECODER | {"sliding_window": None}, "bf16"),
        ("qwen3", DECODER | {"head_dim": 32}, "bf16"),
        ("qwen3", DECODER | {"head_dim": 32}, "fp32"),
        ("llama", DECODER | {"num_key_value_heads": 1}, "fp32"),
        ("mistral", DECODER | {"sliding_window": 16}, "fp32"),
        # Widths that a kernel does not take as they are, or not at all.
        ("llama", DECODER | {"head_dim": 20}, "bf16"),
        ("llama", DECODER | {"head_dim": 6}, "fp32"),
        ("llama", DECODER | {"head_dim": 264}, "bf16"),
        ("llama", DECODER | {"head_dim": 260}, "bf16"),
        ("gpt2", GPT2 | {"n_embd": 72, "n_head": 12}, "fp32"),
    ],
)
def test_hugging_face_equals_native(
    kind: str, fields: dict[str, Any], dtype: str, native: Stats, tmp_path: pathlib.Path, unpacked: None
) -> None:
    build = causal(kind, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], **fields)
    model, args, kwargs = build("meta")
    shape = ["--batch", "2", "--seq", "64", "--dtype", dtype, "--optimizer", "adam"]
    expected = native(config_file(tmp_path, kind, fields), *shape)
    captured = json.loads(capture(model, *args, **kwargs))
    assert difference(captured, expected) is None
    assert timeline(captured) == timeline(expected)


OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam-fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
    "sgd-momentum-fused": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "none": False,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("kind", "fields", "dtype"),
    [("gpt2", GPT2, "fp32"), ("llama", DECODER, "bf16"), ("qwen3", DECODER | {"head_dim": 32}, "bf16")],
)
def test_optimizers_equal_native(
    kind: str, fields: dict[str, Any], dtype: str, optimizer: str, native: Stats, tmp_path: pathlib.Path, unpacked: None
) -> None:
    model, args, kwargs = causal(kind, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], **fields)("meta")
    shape = ["--batch", "2", "--seq", "64", "--dtype", dtype, "--optimizer", optimizer]
    expected = native(config_file(tmp_path, kind, fields), *shape)
    captured = json.loads(capture(model, *args, optimizer=OPTIMIZERS[optimizer], **kwargs))
    assert difference(captured, expected) is None
    assert timeline(captured) == timeline(expected)


def test_the_look_for_packed_sequences_changes_no_peak(native: Stats, stats: Stats, tmp_path: pathlib.Path) -> None:
    model, args, kwargs = causal("llama", torch.bfloat16, **DECODER)("meta")
    shape = ["--batch", "2", "--seq", "64", "--dtype", "bf16", "--optimizer", "adam"]
    expected = native(config_file(tmp_path, "llama", DECODER), *shape)
    peak = stats(capture(model, *args, **kwargs))["peak"]["total"]
    assert peak == max(total for _, _, total in timeline(expected))
