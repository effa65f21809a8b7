"""Every operator of a step under tensor parallelism, as one rank runs it, and the bytes that torch's allocator has given out after it.

    run shared.py FILE            what the test `tensor_steps` compares with; `predictions shared` renews it
    run shared.py FILE NAME...    steps of models of these types only; those that convolve need a runtime with cuDNN

A step begins with a line of JSON: what it is. `detach` is left out: it makes nothing, and torch runs it at other moments.
"""
import json
import sys

import tensor
import torch
from dealt import share
from real import in_child
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import models
from networks import share_network

TINY = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {**TINY, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
LATENT = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
BIASED = {
    **TINY, "num_hidden_layers": 2, "intermediate_size": 192, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": 128,
}  # fmt: skip
# The config; sequences, their length, optimizer; ranks, rank.
CASES = [
    ({"model_type": "llama", **TINY}, 2, 512, "adamw", 2, 0),
    ({"model_type": "llama", **TINY}, 1, 256, "sgd", 4, 1),
    ({"model_type": "qwen3", **TINY, "head_dim": 64}, 1, 512, "adam", 2, 1),
    ({"model_type": "qwen2", **TINY, "vocab_size": 2050, "tie_word_embeddings": True}, 2, 256, "sgd-momentum", 4, 3),
    ({"model_type": "mistral", **TINY, "sliding_window": None}, 3, 64, "adamw", 2, 0),
    ({"model_type": "mistral", **TINY, "sliding_window": 128}, 2, 512, "adamw-fused", 2, 1),
    ({"model_type": "gemma", **TINY, "head_dim": 32}, 2, 512, "adamw", 2, 0),
    ({"model_type": "gemma2", **TINY, "head_dim": 32, "sliding_window": 128}, 1, 512, "adamw", 4, 1),
    ({"model_type": "gemma3_text", **TINY, "head_dim": 32, "sliding_window": 128}, 2, 256, "adamw-fused", 2, 1),
    ({"model_type": "granite", **TINY}, 2, 256, "adamw", 2, 1),
    ({"model_type": "cohere", **TINY}, 1, 512, "adamw", 4, 0),
    ({"model_type": "phi3", **TINY, "pad_token_id": 0, "sliding_window": None, "resid_pdrop": 0.1}, 2, 512, "adamw", 2, 0),
    ({"model_type": "olmo2", **TINY}, 2, 256, "sgd", 4, 3),
    ({"model_type": "gpt_neox", **TINY, "attention_dropout": 0.0, "hidden_dropout": 0.0}, 2, 512, "adamw", 2, 1),
    ({"model_type": "mixtral", **TINY, "num_local_experts": 4, "sliding_window": None}, 2, 256, "adamw", 2, 0),
    ({"model_type": "qwen2_moe", **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 256}, 2, 256, "adamw", 2, 1),
    ({"model_type": "qwen3_moe", **EXPERTS, "num_experts": 4, "head_dim": 64}, 1, 512, "adamw-fused", 4, 2),
    ({"model_type": "deepseek_v3", **LATENT}, 2, 256, "adamw", 2, 0),
    ({"model_type": "deepseek_v3", **LATENT, "q_lora_rank": None, "vocab_size": 2051}, 1, 512, "sgd", 4, 3),
    ({"model_type": "deepseek_v2", **LATENT}, 3, 64, "adamw-fused", 2, 1),
    ({"model_type": "deepseek_v2", **LATENT, "topk_method": "group_limited_greedy"}, 2, 128, "adamw", 4, 0),
    ({"model_type": "gpt_oss", **BIASED}, 2, 256, "adamw", 2, 0),
    ({"model_type": "gpt_oss", **BIASED, "vocab_size": 2049, "num_hidden_layers": 1}, 1, 512, "sgd-momentum", 4, 3),
    ({"model_type": "gpt_oss", **BIASED, "sliding_window": 32}, 3, 64, "adamw-fused", 2, 1),
]
SMALL = {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
SEED = "seed-transformer"


def headed(kind: str, head: str, **fields: object) -> dict[str, object]:
    return {"model_type": kind.lower(), "architectures": [f"{kind}{head}"], **SMALL, **fields}


T5 = {
    "model_type": "t5", "vocab_size": 1024, "d_model": 256, "d_kv": 32, "d_ff": 704, "num_layers": 2, "num_heads": 8,
    "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 2, "num_attention_heads": 8, "image_size": 64, "patch_size": 8, "num_labels": 10,
}  # fmt: skip
TOWER = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8}
CLIP = {
    "model_type": "clip", "projection_dim": 128, "text_config": {**TOWER, "vocab_size": 1023, "max_position_embeddings": 77},
    "vision_config": {**TOWER, "image_size": 64, "patch_size": 16},
}  # fmt: skip


# Models that are not decoders alone. T5 without dropout: under it, torch keeps two numbers of attention on the host that all its tools,
# and we, count on the device.
NETWORKS = [
    (headed("Bert", "ForMaskedLM"), 2, 128, "adamw", 2, 0),
    (headed("Bert", "ForMaskedLM", vocab_size=1021, hidden_act="relu"), 3, 97, "sgd", 4, 3),
    (headed("Bert", "ForSequenceClassification", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), 4, 64, "adamw-fused", 2, 1),
    (headed("Bert", "ForTokenClassification"), 1, 301, "sgd-momentum", 8, 0),
    (headed("Roberta", "ForMaskedLM", vocab_size=1025, pad_token_id=1), 2, 300, "adam", 4, 3),
    (headed("Roberta", "ForSequenceClassification", pad_token_id=1), 2, 77, "adamw", 2, 0),
    ({"model_type": SEED, "layers": 2, "dim": 256, "heads": 8, "vocab": 1024}, 2, 256, "adamw", 2, 0),
    ({"model_type": SEED, "layers": 1, "dim": 192, "heads": 6, "vocab": 999}, 1, 510, "sgd", 6, 5),
    ({"model_type": SEED, "layers": 1, "dim": 128, "heads": 4, "vocab": 251}, 2, 64, "sgd-momentum", 4, 3),
    ({"model_type": SEED, "layers": 2, "dim": 256, "heads": 4, "vocab": 1021}, 3, 128, "adamw-fused", 4, 1),
    (T5, 2, 96, "adamw", 2, 0),
    ({**T5, "vocab_size": 1021, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 1, 129, "sgd", 4, 3),
    ({**T5, "num_decoder_layers": 1, "d_kv": 40}, 3, 50, "adamw-fused", 8, 1),
    (VIT, 2, None, "adamw", 2, 0),
    ({**VIT, "image_size": 56, "qkv_bias": False, "num_labels": 7}, 3, None, "sgd", 4, 3),
    ({**VIT, "hidden_act": "quick_gelu", "hidden_dropout_prob": 0.1}, 1, None, "adamw-fused", 8, 5),
    (CLIP, 4, 77, "adamw", 2, 0),
    ({**CLIP, "projection_dim": 100}, 3, 50, "sgd-momentum", 4, 3),
]
CONVOLVING = ("vit", "clip")
KINDS = {case[0]["model_type"] for case in NETWORKS}
# What does nothing here, and what others are called that do the same.
NOTHING = ("detach.default", "flatten.using_ints", "_local_scalar_dense.default", "lift_fresh.default")
SPELLED = {"view_as.default": "view.default", "to.device": "_to_copy.default", "to.dtype": "_to_copy.default"}


class Watch(TorchDispatchMode):
    """Sees the operators of local tensors, below DTensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        out = func(*args, **(kwargs or {}))
        after = torch.cuda.memory_stats()["requested_bytes.all.current"]
        name = str(func).removeprefix("aten.")
        on_host = func.namespace == "profiler" or (name == "_foreach_add_.Tensor" and not args[0][0].is_cuda)
        idle = name == "to.dtype" and after == before and out is args[0]
        if name not in NOTHING and not idle and not on_host:
            self.lines.append(f"{SPELLED.get(name, name)}\t{after}")
        return out


def model_of(config: dict, batch: int, length: int | None, optimizer: str) -> models.Model:
    kind = config["model_type"]
    if kind == SEED:
        return models.seed(*(config[name] for name in ("layers", "dim", "heads", "vocab")), batch, length, torch.bfloat16)
    if kind in KINDS:
        return models.network(kind, config, batch, length, optimizer=optimizer)
    return models.decoder(config, batch, length, torch.bfloat16, optimizer)


def recorded(config, batch, length, optimizer, ranks, rank) -> list[str]:
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tensor.without_values()
    model = model_of(config, batch, length, optimizer)
    module = models.built(model, "meta")
    given = moved(model.batch())
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    mesh = dist.init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",))
    if config["model_type"] in KINDS:
        share_network(module, mesh)
    else:
        share(module, mesh, length)
        given["position_ids"] = torch.arange(length, device="cuda")[None]
    module.to_empty(device="cuda")
    made = models.OPTIMIZERS[optimizer](module.parameters())
    for _ in range(3):
        watch = Watch()
        with watch:
            with loss_parallel():
                output = module(given["tokens"]) if "tokens" in given else module(**given)
                models.loss(output).backward()
            made.step()
            made.zero_grad()
    return watch.lines


def moved(batch: dict) -> dict:
    """The batch on the device; what is one tensor stays one."""
    there = {value: value.to("cuda") for value in set(filter(torch.is_tensor, batch.values()))}
    return {name: there[value] if torch.is_tensor(value) else value for name, value in batch.items()}


def main(file: str, *names: str) -> None:
    with open(file, "w") as out:
        for case in CASES + NETWORKS:
            kind = case[0]["model_type"]
            if (names and kind not in names) or (not names and kind in CONVOLVING):
                continue
            config, batch, length, optimizer, ranks, rank = case
            step = {"batch": batch, "seq": length, "optimizer": optimizer, "tp": ranks, "tp_rank": rank, "config": config}
            lines = in_child(lambda case=case: recorded(*case))
            if not isinstance(lines, list):
                sys.exit(f"{step}: {lines}")
            out.write(f"{json.dumps({**step, 'operators': len(lines)})}\n")
            out.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
