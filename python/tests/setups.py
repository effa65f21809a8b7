"""Training set-ups as people write them, for captures that the native ones are compared with."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models import DECODER, causal

GPT2 = {"vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
# Three kinds of decoders, one with sizes that divide nothing.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "llama": ("llama", DECODER | {"vocab_size": 515, "intermediate_size": 179}),
    "qwen3": ("qwen3", DECODER | {"head_dim": 32, "tie_word_embeddings": True}),
}
SIZES = ["--batch", "2", "--seq", "64"]


def built(family: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Any]]:
    kind, fields = FAMILIES[family]
    model, _, inputs = causal(kind, dtype, **fields, use_cache=False)("meta")
    return model, inputs


def with_lora(model: nn.Module, rank: int, targets: Any = None) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM"))


def frozen(model: nn.Module, pattern: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not fnmatch.fnmatchcase(name, pattern))
    return model


def loss_of(output: Any, micro_batches: int) -> Any:
    loss = output if isinstance(output, torch.Tensor) else output.loss
    return loss if micro_batches == 1 else loss / micro_batches


def step(
    inputs: dict[str, Any], autocast: torch.dtype | None = None, micro_batches: int = 1
) -> Callable[[nn.Module, Any], Any]:
    """The loop that training scripts have; in float16 with a scaler."""
    # One for CUDA is disabled where there is none; nothing else depends on the device that it is made for.
    scaler = torch.amp.GradScaler("cpu", enabled=autocast == torch.float16)
    batches = [{**inputs, "input_ids": (ids := inputs["input_ids"].clone()), "labels": ids} for _ in range(micro_batches)]

    def fn(model: nn.Module, optimizer: Any) -> Any:
        for batch in batches:
            with torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext():
                output = model(**batch)
            scaler.scale(loss_of(output, micro_batches)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return output

    return fn


class Lion(torch.optim.Optimizer):
    """As `lion-pytorch` has it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["exp_avg"] = torch.zeros_like(parameter)
                    _lion(parameter, parameter.grad, state["exp_avg"], group["lr"], group["weight_decay"], *group["betas"])


def _lion(p: Any, grad: Any, exp_avg: Any, lr: float, wd: float, beta1: float, beta2: float) -> None:
    p.data.mul_(1.0 - lr * wd)
    update = exp_avg.clone().mul_(beta1).add(grad, alpha=1.0 - beta1).sgn_()
    p.add_(update, alpha=-lr)
    exp_avg.mul_(beta2).add_(grad, alpha=1.0 - beta2)


class Muon(torch.optim.Optimizer):
    """Muon for matrices, and AdamW for the rest, as torch's documentation of Muon has it."""

    def __init__(self, parameters: Any) -> None:
        parameters = list(parameters)
        super().__init__(parameters, {})
        self.muon = torch.optim.Muon([parameter for parameter in parameters if parameter.ndim == 2])
        self.adamw = torch.optim.AdamW([parameter for parameter in parameters if parameter.ndim != 2], fused=True)
        self.muon.state = self.adamw.state = self.state

    def step(self, closure: Any = None) -> None:
        self.muon.step()
        self.adamw.step()


def comparable(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace without what native and captured ones say differently, and what makes no difference: captures know no micro-batches,
    and of a module that returns its input they note only that its backward is over."""
    returns_input = {
        call for call, row in enumerate(trace["calls"]) if trace["modules"][row["module"]]["class"] == "Identity"
    }

    def is_kept(event: dict[str, Any]) -> bool:
        ((kind, value),) = event.items()
        return kind != "micro_batch" and not (kind == "enter_backward" and value in returns_input)

    return {**trace, "events": [event for event in trace["events"] if is_kept(event)]}


def config_file(place: pathlib.Path, family: str) -> str:
    kind, fields = FAMILIES[family]
    path = place / f"{family}.json"
    path.write_text(json.dumps({"model_type": kind, **fields}))
    return str(path)
