"""Models of many kinds under FSDP2: the native pass equals the capture of a model that `fully_shard` has sharded, after every operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import rematic
from test_setups_sharded import unlike

transformers = pytest.importorskip("transformers")

BATCH, LENGTH, GPUS, RANK = 2, 64, 4, 3
SMALL = {"hidden_size": 64, "intermediate_size": 180, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 515}
# PyTorch multiplies experts whose width is a multiple of 8.
GROUPED = {**SMALL, "intermediate_size": 184, "num_key_value_heads": 2, "head_dim": 16}
LATENT = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "moe_intermediate_size": 48, "num_experts_per_tok": 2, "head_dim": 8,
}  # fmt: skip
IMAGES = {**{name: value for name, value in SMALL.items() if name != "vocab_size"}, "image_size": 32, "patch_size": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **SMALL, "architectures": ["BertForMaskedLM"]},
    "bert, labels": {"model_type": "bert", **SMALL, "architectures": ["BertForSequenceClassification"]},
    "roberta": {"model_type": "roberta", **SMALL, "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 130},
    "vit": {"model_type": "vit", **IMAGES, "architectures": ["ViTForImageClassification"]},
    # Blocks of the decoder are all given what the encoder says, and those behind the first the biases of positions.
    "t5": {"model_type": "t5", "vocab_size": 515, "d_model": 64, "d_kv": 16, "d_ff": 180, "num_layers": 3, "num_decoder_layers": 3,
           "num_heads": 4, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"]},
    "gpt-oss": {"model_type": "gpt_oss", **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "mixtral": {"model_type": "mixtral", **GROUPED, "num_local_experts": 4, "sliding_window": None},
    "deepseek-v2": {"model_type": "deepseek_v2", **LATENT, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek-v3": {"model_type": "deepseek_v3", **LATENT, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
    "gpt-neox": {"model_type": "gpt_neox", **SMALL},
    "olmo2": {"model_type": "olmo2", **SMALL, "num_key_value_heads": 2},
}  # fmt: skip


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The outermost modules of lists."""
    lists = [list(child) if isinstance(child, nn.ModuleList) else layers_of(child) for child in module.children()]
    return [layer for layers in lists for layer in layers]


def built(config: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    fields = dict(config)
    made = transformers.CONFIG_MAPPING[fields.pop("model_type")](**fields)
    name = fields.get("architectures", [None])[0]
    kind = getattr(transformers, name) if name else transformers.AutoModelForCausalLM._model_mapping[type(made)]
    with torch.device("meta"):
        return kind._from_config(made, attn_implementation="sdpa" if kind._supports_sdpa else "eager", dtype=dtype)


def batch_of(config: dict[str, Any]) -> dict[str, Any]:
    tokens, labels = torch.zeros(BATCH, LENGTH, dtype=torch.long), torch.zeros(BATCH, dtype=torch.long)
    if "image_size" in config:
        size = config["image_size"]
        return {"pixel_values": torch.zeros(BATCH, 3, size, size, dtype=torch.bfloat16), "labels": labels}
    name = config.get("architectures", [""])[0]
    if "Classification" in name:
        return {"input_ids": tokens, "labels": labels}
    if "MaskedLM" in name:
        return {"input_ids": tokens, "labels": tokens.clone()}
    # An encoder and a decoder have texts of their own.
    return {"input_ids": tokens, "labels": tokens.clone() if name else tokens, "use_cache": False}


def captured(config: dict[str, Any], mixed: bool, reshard: bool) -> rematic.Trace:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    model = built(config, torch.float32 if mixed else torch.bfloat16)
    with rematic.cluster(GPUS, RANK) as mesh:
        for layer in layers_of(model):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return rematic.capture(model, **batch_of(config), optimizer=torch.optim.AdamW, device="cuda")


def native(config: dict[str, Any], mixed: bool, reshard: bool) -> rematic.Trace:
    sizes = {"batch": BATCH} if "image_size" in config else {"batch": BATCH, "seq": LENGTH}
    whole = rematic.Trace.model(config, **sizes, dtype="bf16", optimizer="adamw")
    return whole.fsdp(GPUS, rank=RANK, mixed=mixed, reshard=reshard)


@pytest.mark.parametrize(("mixed", "reshard"), [(False, True), (True, False)], ids=["bf16", "mixed, kept"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_total_is_that_of_the_sharded_model(name: str, mixed: bool, reshard: bool) -> None:
    if mixed and name == "olmo2":
        pytest.skip("refused, see below")
    ours, real = native(CONFIGS[name], mixed, reshard), captured(CONFIGS[name], mixed, reshard)
    assert unlike(ours, real)[:5] == []
    assert ours.peak() == real.peak()


def test_numbers_that_fsdp2_would_cast_are_refused() -> None:
    with pytest.raises(rematic.RematicError, match=r"layers\.0` is given numbers in fp32, which FSDP2 casts .*capture the sharded"):
        native(CONFIGS["olmo2"], True, True)


def test_a_parameter_without_dimensions_is_refused() -> None:
    clip = rematic.Trace.model("clip-vit-base-patch32", batch=2)
    with pytest.raises(rematic.RematicError, match=r"logit_scale` has no dimensions, and FSDP2 shards none such"):
        clip.fsdp(2)
