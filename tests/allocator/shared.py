"""Every operator of a step under tensor parallelism, as one rank runs it, and the bytes that torch's allocator has given out after it.

    run shared.py FILE      what the test `tensor_steps` compares with; `predictions shared` renews it

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

TINY = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {**TINY, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
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
]
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


def recorded(config, batch, length, optimizer, ranks, rank) -> list[str]:
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tensor.without_values()
    model = models.decoder(config, batch, length, torch.bfloat16, optimizer)
    module = models.built(model, "meta")
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    share(module, dist.init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",)), length)
    module.to_empty(device="cuda")
    tokens = model.batch()["input_ids"].to("cuda")
    positions = torch.arange(length, device="cuda")[None]
    made = models.OPTIMIZERS[optimizer](module.parameters())
    for _ in range(3):
        watch = Watch()
        with watch:
            with loss_parallel():
                output = module(input_ids=tokens, labels=tokens, position_ids=positions, use_cache=False)
                output.loss.backward()
            made.step()
            made.zero_grad()
    return watch.lines


def main(file: str) -> None:
    with open(file, "w") as out:
        for case in CASES:
            config, batch, length, optimizer, ranks, rank = case
            step = {"batch": batch, "seq": length, "optimizer": optimizer, "tp": ranks, "tp_rank": rank, "config": config}
            out.write(f"{json.dumps(step)}\n")
            out.writelines(f"{line}\n" for line in in_child(lambda case=case: recorded(*case)))


if __name__ == "__main__":
    main(sys.argv[1])
