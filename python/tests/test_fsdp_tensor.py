"""FSDP2 over tensor parallelism: the native step equals the capture of a model that is dealt out and sharded, after every operator.

Models whose modules are given another forward to be dealt out (experts, GPT-OSS, ViT) cannot be captured: it would run the modules that were
copied. They are compared with PyTorch's allocator (`tests/allocator/predictions tensor`).
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from typing import Any

import pytest
import torch
from torch import nn

import rematic
from test_setups_sharded import total_after_each, unlike_totals

transformers = pytest.importorskip("transformers")
fsdp = pytest.importorskip("torch.distributed.fsdp")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")

ALLOCATOR = pathlib.Path(__file__).parents[2] / "tests" / "allocator"

BATCH, LENGTH, SHARED, SPREAD = 2, 64, 2, 4
# The last of those that parameters are spread over, and of those that share the model.
RANK = SHARED * SPREAD - 1
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 515}
DECODER = {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": False}
T5 = {
    "model_type": "t5", "vocab_size": 515, "d_model": 64, "d_kv": 16, "d_ff": 192, "num_layers": 3, "num_decoder_layers": 3,
    "num_heads": 4, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"],
}  # fmt: skip
SEED = "seed-transformer"


def said(name: str) -> Any:
    """How models are dealt out, which is said once, where PyTorch's allocator is compared too."""
    if str(ALLOCATOR) not in sys.path:
        sys.path.append(str(ALLOCATOR))
    spec = importlib.util.spec_from_file_location(f"allocator_{name}", ALLOCATOR / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dealt, networks = said("dealt"), said("networks")
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **DECODER},
    "gpt-neox": {"model_type": "gpt_neox", **SMALL, "tie_word_embeddings": False},
    "bert": {"model_type": "bert", **SMALL, "architectures": ["BertForMaskedLM"]},
    "roberta": {"model_type": "roberta", **SMALL, "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 130},
    "t5": T5,
    SEED: {"layers": 3, "dim": 64, "heads": 4, "vocab": 515},
}


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The outermost modules of lists."""
    lists = [list(child) if isinstance(child, nn.ModuleList) else layers_of(child) for child in module.children()]
    return [layer for layers in lists for layer in layers]


def built(name: str, dtype: torch.dtype) -> nn.Module:
    fields = dict(CONFIGS[name])
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            if name == SEED:
                common = pytest.importorskip("torch.testing._internal.distributed._tensor.common_dtensor")
                arguments = common.ModelArgs(fields["layers"], fields["vocab"], LENGTH, fields["dim"], fields["heads"], 0.1)
                return common.Transformer(arguments).train()
            made = transformers.CONFIG_MAPPING[fields.pop("model_type")](**fields)
            head = fields.get("architectures", [None])[0]
            kind = getattr(transformers, head) if head else transformers.AutoModelForCausalLM._model_mapping[type(made)]
            attention = "sdpa" if kind._supports_sdpa else "eager"
            return kind._from_config(made, attn_implementation=attention, dtype=dtype).train()
    finally:
        torch.set_default_dtype(before)


def batch_of(name: str) -> dict[str, Any]:
    config, tokens = CONFIGS[name], torch.zeros(BATCH, LENGTH, dtype=torch.long)
    if name == SEED:
        return {"tokens": tokens}
    if "MaskedLM" in config.get("architectures", [""])[0]:
        return {"input_ids": tokens, "labels": tokens.clone()}
    if name == "t5":
        return {"input_ids": tokens, "labels": tokens.clone(), "use_cache": False}
    # A rank has a part of the sequence, and cannot count positions.
    return {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(LENGTH)[None], "use_cache": False}


def dealt_out(name: str, mesh: Any, dtype: torch.dtype) -> nn.Module:
    model = built(name, dtype)
    if name == SEED or "architectures" in CONFIGS[name]:
        networks.share_network(model, mesh)
    else:
        dealt.share(model, mesh, LENGTH)
    return model


def captured(name: str, mixed: bool, reshard: bool) -> rematic.Trace:
    policy = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else fsdp.MixedPrecisionPolicy()
    given = batch_of(name)

    def step(model: nn.Module, optimizer: Any) -> Any:
        with parallel.loss_parallel():
            output = model(given["tokens"]) if name == SEED else model(**given)
            (output.sum() if name == SEED else output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        return output

    with rematic.cluster(SHARED * SPREAD, RANK, {"dp": SPREAD, "tp": SHARED}) as mesh:
        model = dealt_out(name, mesh["tp"], torch.float32 if mixed else torch.bfloat16)
        for layer in layers_of(model):
            fsdp.fully_shard(layer, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=reshard)
        fsdp.fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
        return rematic.capture_step(step, model, torch.optim.AdamW, device="cuda")


def native(name: str, mixed: bool, reshard: bool) -> rematic.Trace:
    config = CONFIGS[name]
    sizes: dict[str, Any] = {"batch": BATCH, "seq": LENGTH, "dtype": "bf16", "optimizer": "adamw", "tp": SHARED, "tp_rank": RANK % SHARED}
    whole = rematic.Trace.model(SEED, **config, **sizes) if name == SEED else rematic.Trace.model(config, **sizes)
    return whole.fsdp(SPREAD, rank=RANK // SHARED, mixed=mixed, reshard=reshard)


# What makes no memory, and runs at other moments or is not captured.
PASSING = ("_c10d_functional._wrap_tensor_autograd.default", "_c10d_functional.wait_tensor.default", "detach.default")
# What operators are called that the parts of a loss run below autograd.
SPELLED = {"view_as.default": "view.default", "to.device": "_to_copy.default", "to.dtype": "_to_copy.default"}


def compared(ours: rematic.Trace, real: rematic.Trace) -> list[str]:
    totals = [pair for pair in total_after_each(ours) if pair[0] not in PASSING]
    return unlike_totals(totals, [(SPELLED.get(name, name), total) for name, total in total_after_each(real)])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_total_is_that_of_the_sharded_model(name: str) -> None:
    ours, real = native(name, False, True), captured(name, False, True)
    assert compared(ours, real)[:5] == []
    assert ours.peak() == real.peak()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_peak_in_mixed_precision_is_that_of_the_sharded_model(name: str) -> None:
    assert native(name, True, False).peak() == captured(name, True, False).peak()


def test_the_gradients_of_one_image_are_refused() -> None:
    """That of the first token is then a part of the memory of that of all positions, which no operator makes."""
    with pytest.raises(rematic.RematicError, match="makes a gradient, and it is not known of which parameter"):
        rematic.Trace.model("vit-base", batch=1, layers=1, tp=SHARED).fsdp(SPREAD)


def test_fsdp2_refuses_a_parameter_without_dimensions_as_we_do() -> None:
    tower = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {
        "model_type": "clip", "projection_dim": 32, "text_config": {**tower, "vocab_size": 515, "max_position_embeddings": 64},
        "vision_config": {**tower, "image_size": 32, "patch_size": 8},
    }  # fmt: skip
    with pytest.raises(rematic.RematicError, match=r"logit_scale` has no dimensions, and FSDP2 shards none such"):
        rematic.Trace.model(config, batch=2, tp=SHARED).fsdp(SPREAD)
    fields = json.loads(json.dumps({name: value for name, value in config.items() if name != "model_type"}))
    with rematic.cluster(SHARED * SPREAD, 0, {"dp": SPREAD, "tp": SHARED}) as mesh:
        with torch.device("meta"):
            model = transformers.CLIPModel(transformers.CLIPConfig(**fields))
        networks.share_network(model, mesh["tp"])
        with pytest.raises(ValueError, match="doesn't support scalar parameters"):
            fsdp.fully_shard(model, mesh=mesh["dp"])
