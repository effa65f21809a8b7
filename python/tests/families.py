"""Families of decoders that have a native model: three sizes of each, odd ones among them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A config, and the step that is taken with it."""

    kind: str
    fields: dict[str, Any]
    dtype: str
    batch: int
    seq: int


SMALL = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
# Nothing is a multiple of anything: vocabulary, heads, widths.
ODD = {
    "vocab_size": 1001, "hidden_size": 60, "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 256,
}  # fmt: skip
ONE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 33, "num_hidden_layers": 1, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 256,
}  # fmt: skip

def three(kind: str, first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> list[Case]:
    """In bf16, fp32 and fp16, with sequences of 64, 33 and 31."""
    return [
        Case(kind, SMALL | first, "bf16", 2, 64),
        Case(kind, ODD | second, "fp32", 3, 33),
        Case(kind, ONE | third, "fp16", 1, 31),
    ]


CASES = [
    *three("gemma", {"head_dim": 32}, {"head_dim": 10, "attention_bias": True}, {"head_dim": 16, "tie_word_embeddings": False}),
    *three(
        "gemma2",
        {"head_dim": 32, "sliding_window": 16},
        {"head_dim": 10, "sliding_window": 256, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"head_dim": 16, "sliding_window": 9, "tie_word_embeddings": False, "attention_dropout": 0.1},
    ),
    *three(
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
        {"head_dim": 20, "sliding_window": 20, "final_logit_softcapping": 30.0, "sliding_window_pattern": 3},
        {"head_dim": 16, "sliding_window": 64, "tie_word_embeddings": False, "attention_bias": True},
    ),
    *three(
        "phi3",
        {"pad_token_id": 0, "sliding_window": 16},
        {"pad_token_id": 0, "resid_pdrop": 0.1, "partial_rotary_factor": 0.6, "tie_word_embeddings": True},
        {"pad_token_id": 0, "attention_dropout": 0.1, "partial_rotary_factor": 0.5},
    ),
    *three("olmo2", {}, {"attention_bias": True}, {"tie_word_embeddings": True, "attention_dropout": 0.1}),
    *three("granite", {}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True, "logits_scaling": 8.0}),
    *three("cohere", {}, {"use_qk_norm": True, "attention_bias": True}, {"tie_word_embeddings": False, "use_qk_norm": True}),
    *three(
        "gpt_neox",
        {},
        {"use_parallel_residual": False, "hidden_dropout": 0.1, "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}},
        {"tie_word_embeddings": True, "attention_bias": False, "attention_dropout": 0.1},
    ),
    *three(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 16},
        {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 76},
        {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 40, "tie_word_embeddings": True},
    ),
    *three(
        "qwen2_moe",
        {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
        {
            "num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 28, "shared_expert_intermediate_size": 33,
            "decoder_sparse_step": 2, "norm_topk_prob": True,
        },
        {
            "num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 9,
            "use_sliding_window": True, "sliding_window": 16, "tie_word_embeddings": True,
        },
    ),
    *three(
        "qwen3_moe",
        {"num_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "head_dim": 32, "norm_topk_prob": True},
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "mlp_only_layers": [1], "head_dim": 12},
        {
            "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "use_sliding_window": True,
            "sliding_window": 16, "attention_bias": True,
        },
    ),
    *three(
        "gpt_oss",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 32, "sliding_window": 16, "intermediate_size": 40},
        {
            "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 10, "sliding_window": 128, "attention_bias": False,
            "intermediate_size": 36,
        },
        {
            "num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9, "intermediate_size": 24,
            "tie_word_embeddings": True, "attention_dropout": 0.1, "layer_types": ["full_attention"],
        },
    ),
    *three(
        "deepseek_v2",
        {
            "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
        },
        {
            "num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 18, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
            "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "attention_bias": True,
            "mlp_bias": True, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        },
        {
            "num_key_value_heads": 3, "q_lora_rank": 31, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "tie_word_embeddings": True,
            "attention_dropout": 0.1,
        },
    ),
    *three(
        "deepseek_v3",
        {
            "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 4,
            "topk_group": 2, "num_nextn_predict_layers": 1,
        },
        {
            "num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 17, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
            "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "attention_bias": True,
            "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "norm_topk_prob": False, "rope_interleave": False,
        },
        {
            "num_key_value_heads": 3, "q_lora_rank": 31, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "tie_word_embeddings": True,
            "attention_dropout": 0.1, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
        },
    ),
]  # fmt: skip
NAMES = [f"{case.kind}-{case.dtype}" for case in CASES]
