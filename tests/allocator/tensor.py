"""Steps under tensor parallelism, alone and with FSDP2 over it, on the fake GPU, against what we predict for them.

    run tensor.py REMATIC [NAME...]     REMATIC is the command; a line for each step, then each under plans for five budgets, put on
                                        before and after the model is sharded

The model of transformers is dealt out as `dealt.py` says. It is built without memory and sharded, then its shards are made. The third
step is measured.
"""
import sys
from functools import partial

import torch
from dealt import share
from real import peaks, without_values
from sharded import compare, put_on, ready

import models

QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = ("llama-3-8b", "llama-3-8b.json", 1, 8192, "adamw")
QWEN = ("qwen3-8b", QWEN3_8B, 1, 8192, "adamw")
# The step, and the ranks that share the model, those that parameters are spread over, the rank, reshard, mixed.
CASES = {
    "llama": (LLAMA, 8, 1, 0, True, False),
    "llama-last": (LLAMA, 8, 1, 7, True, False),
    "llama-2d": (LLAMA, 8, 8, 0, True, False),
    "llama-2d-last": (LLAMA, 8, 8, 63, True, False),
    "llama-2d-mixed": (LLAMA, 8, 8, 0, True, True),
    "llama-2d-kept": (LLAMA, 2, 4, 0, False, False),
    "qwen3-2d": (QWEN, 4, 8, 0, True, False),
    "qwen3-2d-last": (QWEN, 4, 8, 31, True, False),
    "mistral": (("mistral-7b", MISTRAL_7B, 2, 2048, "adam"), 4, 1, 0, True, False),
    "qwen2": (("qwen2.5-7b", QWEN2_7B, 4, 1024, "sgd-momentum"), 2, 1, 1, True, False),
}


def train(step: tuple, how: tuple, plan: str | None = None, late: bool = True) -> dict[str, int]:
    """Three steps; the counters of the third. A plan is put on after sharding, or before."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    without_values()
    tp, fsdp, rank, reshard, mixed = how
    _, config, batch, length, optimizer = step
    model = models.decoder(config, batch, length, torch.float32 if mixed else torch.bfloat16, optimizer)
    module = models.built(model, "meta")
    dist.init_process_group("fake", rank=rank, world_size=tp * fsdp, store=FakeStore())
    mesh = dist.init_device_mesh("cuda", (fsdp, tp), mesh_dim_names=("dp", "tp"))

    share(module, mesh["tp"], length)
    if plan is not None and not late:
        put_on(module, plan)
    if fsdp > 1:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        for layer in module.model.layers:
            fully_shard(layer, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    module.to_empty(device="cuda")
    if plan is not None and late:
        put_on(module, plan)
    return peaks(three_steps(model, module))


def three_steps(model: models.Model, module: torch.nn.Module) -> dict[str, int]:
    """As `real.three_steps`, with the loss from logits that are dealt out, and positions, which a rank cannot count."""
    from torch.distributed.tensor.parallel import loss_parallel

    batch = {name: value.to("cuda") for name, value in model.batch().items() if torch.is_tensor(value)}
    tokens = batch["input_ids"]
    positions = torch.arange(tokens.shape[1], device="cuda")[None]
    optimizer = models.OPTIMIZERS[model.optimizer](module.parameters())
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        with loss_parallel():
            output = module(input_ids=tokens, labels=tokens, position_ids=positions, use_cache=False)
            output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.memory_stats()


def options(step: tuple, how: tuple) -> list[str]:
    """What is asked of the command."""
    name, _, batch, length, optimizer = step
    tp, fsdp, rank, reshard, mixed = how
    asked = [name, "--batch", str(batch), "--seq", str(length), "--optimizer", optimizer]
    asked += ["--tp", str(tp), "--tp-rank", str(rank % tp)]
    if fsdp > 1:
        asked += ["--fsdp", str(fsdp), "--fsdp-rank", str(rank // tp), "--reshard", "yes" if reshard else "no"]
        asked += ["--precision", "mixed"] if mixed else []
    return asked


def main(command: str, *names: str) -> None:
    for name in names or CASES:
        step, *how = CASES[name]
        question = options(step, tuple(how))
        ready(models.decoder(*step[1:4], torch.bfloat16, step[4]))
        compare(command, " ".join(question), question, partial(train, step, tuple(how)))


if __name__ == "__main__":
    main(*sys.argv[1:])
