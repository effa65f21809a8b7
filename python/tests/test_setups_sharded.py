"""Set-ups under FSDP2: the native pass equals the capture of a model that `fully_shard` has sharded, after every operator."""

from __future__ import annotations

import functools
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import rematic
from adapters import with_adapters
from setups import FAMILIES, SIZES, built, config_file, frozen, loss_of, step

ADAMW = functools.partial(torch.optim.AdamW, fused=True)
GPUS = 8
# How the model is prepared, the loop, and what the native step is asked for.
SETUPS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "accumulate": (None, {"micro_batches": 3}, {"accumulate": 3}),
    "chunked": (None, {}, {"loss": "chunked"}),
    "lora": (lambda model: with_adapters(model, 8, None), {}, {"lora": 8}),
    "frozen": (lambda model: frozen(model, "*.0.*"), {}, {"freeze": "*.0.*"}),
    "chunked, accumulate": (None, {"micro_batches": 2}, {"loss": "chunked", "accumulate": 2}),
    "lora, accumulate": (
        lambda model: with_adapters(model, 5, "all-linear"),
        {"micro_batches": 2},
        {"lora": 5, "lora_targets": ["all-linear"], "accumulate": 2},
    ),
    "lora, all-linear": (lambda model: with_adapters(model, 8, "all-linear"), {}, {"lora": 8, "lora_targets": ["all-linear"]}),
}


def sharded(model: nn.Module, mesh: Any, mixed: bool, half: torch.dtype = torch.bfloat16) -> nn.Module:
    policy = MixedPrecisionPolicy(half, torch.float32) if mixed else MixedPrecisionPolicy()
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner = getattr(inner, "base_model", inner)
    lists = (module for module in inner.modules() if isinstance(module, nn.ModuleList))
    for layer in next(lists):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def total_after_each(trace: rematic.Trace) -> list[tuple[str, int]]:
    return [(op.name, total) for op, total in zip(trace.ops, trace.timeline(), strict=True)]


def unlike(native: rematic.Trace, captured: rematic.Trace) -> list[str]:
    """Where the total after an operator is another one."""
    return unlike_totals(total_after_each(native), total_after_each(captured))


def unlike_totals(native: list[tuple[str, int]], real: list[tuple[str, int]]) -> list[str]:
    """The same of totals. A captured step has more operators: views, and the buffers of collectives as operators of their own."""
    found, at = [], 0
    for number, (name, total) in enumerate(native):
        here = next((other for other in range(at, len(real)) if real[other][0] == name), None)
        if here is None:
            found.append(f"operator {number}, {name}, is not captured")
            continue
        at = here + 1
        if real[here][1] != total:
            found.append(f"after operator {number}, {name}: {total:,} for {real[here][1]:,}")
    return found


def native_step(family: str, options: dict[str, Any], mixed: bool, command: str, place: pathlib.Path) -> rematic.Trace:
    """The native step, sharded. Adapters compute in the type of the step in mixed precision, which only the command can be asked for."""
    if not (mixed and "lora" in options):
        kind, fields = FAMILIES[family]
        asked = {"batch": 2, "seq": 64, "dtype": "bf16", "optimizer": "adamw-fused"}
        return rematic.Trace.model({"model_type": kind, **fields}, **asked, **options).fsdp(GPUS, rank=3, mixed=mixed)
    file = place / "native.rmt"
    asked = [command, "trace", config_file(place, family), "-o", str(file), *SIZES, "--optimizer", "adamw-fused"]
    asked += ["--fsdp", str(GPUS), "--fsdp-rank", "3", "--precision", "mixed"]
    for name, value in options.items():
        asked += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, list) else str(value)]
    subprocess.run(asked, check=True, capture_output=True)
    return rematic.Trace.load(file)


@pytest.mark.parametrize("mixed", [False, True], ids=["bf16", "mixed"])
@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_setups_equal_captured_ones(family: str, name: str, mixed: bool, command: str, tmp_path: pathlib.Path) -> None:
    prepared, loop, options = SETUPS[name]
    model, inputs = built(family, torch.float32 if mixed else torch.bfloat16)
    if prepared is not None:
        model = prepared(model)
    with rematic.cluster(GPUS, 3) as mesh:
        kind_of_loss = options.get("loss", "plain")
        captured = rematic.capture_step(
            step(inputs, **loop), sharded(model, mesh, mixed), ADAMW, loss_kind=kind_of_loss, device="cuda"
        )
    native = native_step(family, options, mixed, command, tmp_path)
    assert unlike(native, captured)[:5] == []
    assert native.peak() == captured.peak()


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_in_fp32_are_refused_in_mixed_precision(family: str) -> None:
    kind, fields = FAMILIES[family]
    whole = rematic.Trace.model({"model_type": kind, **fields}, batch=2, seq=64, dtype="bf16", optimizer="adamw-fused", lora=8)
    with pytest.raises(rematic.RematicError, match="computes in fp32"):
        whole.fsdp(GPUS, mixed=True)


def scaled_step(inputs: dict[str, Any], micro_batches: int) -> Callable[[nn.Module, Any], Any]:
    scaler = torch.amp.GradScaler("cpu")
    batches = [{"input_ids": (ids := inputs["input_ids"].clone()), "labels": ids} for _ in range(micro_batches)]

    def fn(model: nn.Module, optimizer: Any) -> Any:
        for batch in batches:
            output = model(**batch)
            scaler.scale(loss_of(output, micro_batches)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return output

    return fn


@pytest.mark.parametrize("optimizer", ["adamw-fused", "adamw"])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_losses_equal_captured_ones(
    family: str, micro_batches: int, optimizer: str, command: str, tmp_path: pathlib.Path
) -> None:
    model, inputs = built(family, torch.float32)
    kind = ADAMW if optimizer == "adamw-fused" else functools.partial(torch.optim.AdamW, foreach=True)
    with rematic.cluster(GPUS, 3) as mesh:
        model = sharded(model, mesh, True, torch.float16)
        captured = rematic.capture_step(scaled_step(inputs, micro_batches), model, kind, device="cuda")
    place = tmp_path / "native.rmt"
    asked = [command, "trace", config_file(tmp_path, family), "-o", str(place), *SIZES, "--optimizer", optimizer]
    asked += ["--fsdp", str(GPUS), "--fsdp-rank", "3", "--precision", "fp16", "--accumulate", str(micro_batches)]
    subprocess.run(asked, check=True, capture_output=True)
    native = rematic.Trace.load(place)
    assert unlike(native, captured)[:5] == []
    assert native.peak() == captured.peak()
