"""Runs of calls that are checkpointed as one: promises below what single calls reach, kept to the bit, and refusals."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rematic
from models import Layer
from plans import WIDTH, edited
from reality import peaks

TOLERANCE = 0.001
STEPS = 3


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step_of(inputs: Any, loss_of: Callable[[Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    def step(model: nn.Module, optimizer: Any) -> Tensor:
        loss = loss_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(func).removeprefix("aten.")] += 1
        return func(*args, **(kwargs or {}))


def trained(model: nn.Module, step: Callable[[nn.Module, Any], Tensor]) -> list[Tensor]:
    """Losses of some steps, and all that they leave: parameters and buffers."""
    torch.manual_seed(1)
    optimizer = sgd(model)
    losses = [step(model, optimizer) for _ in range(STEPS)]
    return [*losses, *(value.clone() for value in model.state_dict().values())]


def least_budget(trace: Any, **options: Any) -> int:
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, **options)
    return infeasible.value.least_budget


def check_below_single_calls(model: nn.Module, inputs: Any, loss_of: Callable[[Any], Tensor]) -> None:
    """Trains under plans for budgets that no plan of single calls reaches."""
    step = step_of(inputs, loss_of)
    trace = rematic.capture_step(lambda model, optimizer: step(model, optimizer), model, sgd(model), device="cpu")
    weights = copy.deepcopy(model.state_dict())
    single, lowest = least_budget(trace, runs=False), least_budget(trace)
    assert lowest < single
    expected = trained(model, step)
    kernels = {op.name.split(".")[0] for op in trace.ops}
    for budget in (lowest, (lowest + single) // 2, single - 1):
        plan = rematic.plan(trace, budget)
        assert any(region.then for region in plan.regions)
        assert rematic.Plan.from_json(plan.to_json()) == plan
        model.load_state_dict(weights)
        rematic.apply(model, plan)
        torch.manual_seed(1)
        optimizer = sgd(model)
        real, _ = peaks(lambda: step(model, optimizer), model, inputs, kernels)  # noqa: B023
        assert abs(real - plan.peak) <= TOLERANCE * plan.peak, (real, plan.peak, plan.peak / real)
        model.load_state_dict(weights)
        found = trained(model, step)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        rematic.remove(model)


def recomputed(model: nn.Module, plan: rematic.Plan, inputs: Any, loss_of: Callable[[Any], Tensor]) -> Counter[str]:
    """The operators that a step runs more under a plan than without."""
    counts = []
    for planned in (False, True):
        if planned:
            rematic.apply(model, plan, audit=0)
        counting = Counting()
        loss = loss_of(model(inputs))
        with counting:
            loss.backward()
        counts.append(counting.count)
    rematic.remove(model)
    return counts[1] - counts[0]


# ---- promises ----


def flat(layers: int = 24, width: int = 64) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*parts)


def test_a_flat_sequence_of_layers() -> None:
    torch.manual_seed(0)
    check_below_single_calls(flat(), torch.randn(512, 64), lambda out: out.square().mean())


def test_dropout_and_running_statistics_in_a_sequence() -> None:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(8):
        parts += [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    check_below_single_calls(nn.Sequential(*parts), torch.randn(512, 32), lambda out: out.square().mean())


def test_sequences_inside_a_sequence() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(flat(1, 64) for _ in range(24)))
    check_below_single_calls(model, torch.randn(512, 64), lambda out: out.square().mean())


def test_llama() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=9, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    tokens = torch.randint(4096, (4, 64))
    check_below_single_calls(model, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss)


def test_bert() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4
    )
    model = transformers.BertForMaskedLM(config).train()
    tokens = torch.randint(4096, (4, 64))
    check_below_single_calls(model, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss)


def test_vit() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=64, patch_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        hidden_dropout_prob=0.1, num_labels=8,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).train()
    # What is highest must not be a layer that runs again, which several layers as one would raise.
    many = torch.randn(1 << 12, 1, 1)
    inputs = {"pixel_values": torch.randn(8, 3, 64, 64)}
    check_below_single_calls(model, inputs, lambda out: (out.logits * many).square().mean())
