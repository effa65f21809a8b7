"""Batches with padding and without, of which models drop the mask: both follow one plan."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import check_equal, edited


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_batches_with_and_without_padding(kind: str, attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    config, cls = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    }[kind]
    small = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model = cls._from_config(config(**small, use_cache=False), attn_implementation=attention)
    ids = torch.randint(3, 64, (3, 12))
    full = torch.ones_like(ids)
    padded = full.clone()
    padded[1, 7:] = 0

    def gradients(mask: Tensor, **change: Any) -> list[Tensor]:
        torch.manual_seed(2)
        model(**{"input_ids": ids, "labels": ids, "attention_mask": mask, **change}).loss.backward()
        found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return found

    expected = {id(mask): gradients(mask) for mask in (full, padded)}
    for first, second in itertools.permutations((full, padded)):
        batch = {"input_ids": ids, "labels": ids, "attention_mask": first}
        with pytest.raises(rematic.Infeasible) as infeasible:
            rematic.auto(model, **batch, device="cpu", optimizer=False, budget=1)
        plan = rematic.auto(model, **batch, device="cpu", optimizer=False, budget=infeasible.value.least_budget)
        names = {variant.name for variant in plan.variants}
        # The eager Llama makes its mask in any case: there is one variant.
        assert names == ({""} if kind == "llama" and attention == "eager" else {"padded", "not padded"})
        for mask in (first, second, first):
            check_equal(gradients(mask), expected[id(mask)])
        # Other shapes of the same kind, as dynamic padding has them.
        gradients(padded[:2, :9], input_ids=ids[:2, :9].contiguous(), labels=ids[:2, :9].contiguous())
        rematic.remove(model)


@pytest.mark.parametrize("openings", [True, False])
def test_real_peaks_of_each_variant(openings: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from reality import TOLERANCE, check_peak, peaks

    torch.manual_seed(0)
    small = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**small, use_cache=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(3, 256, (8, 64))
    padded = torch.ones_like(ids)
    padded[1, 40:] = 0

    def step_of(mask: Tensor) -> Any:
        batch = {"input_ids": ids, "labels": ids, "attention_mask": mask}

        def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
            output = model(**batch)
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return output

        return step, batch

    masks = {"padded": padded, "not padded": torch.ones_like(ids)}
    traces = {name: rematic.capture_step(step_of(mask)[0], model, optimizer, device="cpu") for name, mask in masks.items()}
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(traces, 1)
    least, highest = infeasible.value.least_budget, max(trace.peak() for trace in traces.values())
    for budget in (least, (least + highest) // 2):
        plan = rematic.plan(traces, budget)
        if not openings:
            # Then a module that only one variant checkpoints runs before it is known which one it is.
            plan = edited(plan, lambda document: [part.pop("opening") for part in (document, *document["variants"])] and None)
        rematic.apply(model, plan)
        for variant in plan.variants:
            step, batch = step_of(masks[variant.name])
            kernels = {op.name.split(".")[0] for op in traces[variant.name].ops}
            real = peaks(lambda: step(model, optimizer), model, batch, kernels)  # noqa: B023
            if openings:
                check_peak(variant.name, variant.peak, real)
            else:
                assert real[0] <= plan.budget * (1 + TOLERANCE)
        rematic.remove(model)
