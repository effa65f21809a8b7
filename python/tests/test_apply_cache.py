"""Models that keep keys and values for generation unless told not to."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import rematic
from models import DECODER, causal

GPT2 = {"vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture(params=["llama", "gpt2"])
def built(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, _, kwargs = causal(request.param, **(GPT2 if request.param == "gpt2" else DECODER))("cpu")
    assert model.config.use_cache is True
    return model, {name: value for name, value in kwargs.items() if name != "use_cache"}


LAYERS = ["model.layers.?", "transformer.h.?"]


def plan(model: nn.Module, trace: rematic.Trace) -> rematic.Plan:
    """Layers as a whole, attention and all."""
    only = next(name for name in LAYERS if hasattr(model, name.partition(".")[0]))
    return rematic.plan(trace, int(0.9 * trace.peak()), only=only, whole=True)


def step(model: nn.Module, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(**kwargs).loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_a_plan_trains_without_the_cache(built: tuple[nn.Module, dict[str, Any]]) -> None:
    model, kwargs = built
    plain = step(copy.deepcopy(model), kwargs)
    with pytest.warns(rematic.RematicWarning, match="has use_cache, .* a step without it is captured"):
        trace = rematic.capture(model, **kwargs, device="cpu")
    assert trace.peak() == rematic.capture(model, **kwargs, use_cache=False, device="cpu").peak()
    rematic.apply(model, plan(model, trace))
    planned = step(model, kwargs)
    assert all(torch.equal(one, other) for one, other in zip(plain, planned, strict=True))
    # Elsewhere it is as the user wants it.
    assert model.config.use_cache is True
    model.eval()
    with torch.no_grad():
        assert model(input_ids=kwargs["input_ids"]).past_key_values is not None


def test_encoders_are_not_warned_of() -> None:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, use_cache=True,
    )).train()  # fmt: skip
    ids = torch.ones(1, 8, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rematic.RematicWarning)
        rematic.capture(model, input_ids=ids, labels=ids, device="cpu")


def test_a_cache_that_is_asked_for(built: tuple[nn.Module, dict[str, Any]]) -> None:
    """A layer that is recomputed finds it as it was."""
    model, kwargs = built
    kwargs = {**kwargs, "use_cache": True}
    plain = step(copy.deepcopy(model), kwargs)
    chosen = plan(model, rematic.capture(model, **kwargs, device="cpu"))
    assert chosen.regions
    rematic.apply(model, chosen)
    assert all(torch.equal(one, other) for one, other in zip(plain, step(model, kwargs), strict=True))
